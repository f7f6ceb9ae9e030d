/* Teaching of logistic students in one fused loop: about the limit of a machine, to compare with.

   Compiled by c_loop.py for rows of STRIDE weights: a student has `width` of them, the last its bias; the rest is 0.
   The file includes itself twice, for float and for double. Several students are taught together, in lanes: while the
   step of one waits for a result, those of the others proceed. Calls for different students may run concurrently.

   A step on the example x with the gradient u in the output, where the bias does not decay:

       w+ = w - rate (u x + decay w),    u = sigmoid(z) - label,    z = <w, x>,    shrink = rate decay

   The best free label is sigmoid(z) - <e, x> / (rate ||x||^2), with e = w - shrink w - w*. */

#ifndef REAL

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 8      /* Students taught together on proposed examples. */
#define POOL_LANES 6 /* Students taught together on the best example of the pool. */
#define CHUNK 16     /* Examples of the pool whose products with these students are in registers at once. */

/* As in c_loop.py. */
enum { TRUTH, NONE, ONE_HOT, SIMPLEX, MAGNITUDE };

typedef struct {
  int64_t pool, chunks, width, steps; /* Chunks are filled up with the first example. */
  double rate, shrink, radius;
  const void *x;              /* [pool][STRIDE] */
  const void *columns;        /* [width][chunks CHUNK] */
  const void *truth;          /* [chunks CHUNK] */
  const void *target_outputs; /* [chunks CHUNK], <w*, x> */
  const void *scales;         /* [chunks CHUNK], rate ||x||^2 */
  const void *target;         /* [STRIDE] */
  const void *keep;           /* [STRIDE], factor of weight decay in a step. */
} Task;

/* A random example, by xorshift64*. */
INLINE int64_t draw(uint64_t *state, int64_t pool) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return (int64_t)(((*state * 0x2545F4914F6CDD1DULL >> 32) * (uint64_t)pool) >> 32);
}

/* The initial state of a student's draws, never 0: splitmix64. */
INLINE uint64_t first_state(uint64_t seed, int64_t student) {
  uint64_t z = (seed << 32) + (uint64_t)student + 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return (z ^ (z >> 31)) | 1;
}

/* exp(x) to rounding, by exp(x) = 2^n exp(r) and Taylor's series. Inlined: a call would spill all registers. */
INLINE float exp_float(float x) {
  x = x < -87.0f ? -87.0f : x > 87.0f ? 87.0f : x;
  const float n = rintf(x * 1.44269504f);
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* ln 2 in two parts: n times the first is exact. */
  float series = 1.0f / 5040;
  series = series * r + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const int32_t bits = ((int32_t)n + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof(power));
  return series * power;
}

#define REAL float
#define NAME(name) name##_float
#define EXP exp_float
#define SQRT sqrtf
#include __FILE__
#undef REAL
#undef NAME
#undef EXP
#undef SQRT
#define REAL double
#define NAME(name) name##_double
#define EXP exp
#define SQRT sqrt
#include __FILE__

#else

INLINE REAL NAME(clip)(REAL value, REAL low, REAL high) {
  value = value < low ? low : value;
  return value > high ? high : value;
}

/* u, from the output, <e, x>, and facts about the example. `labels` is a constant where this is inlined. */
INLINE REAL NAME(gradient)(int labels, REAL output, REAL error, REAL scale, REAL truth, REAL radius) {
  const REAL prediction = 1 / (1 + EXP(-output));
  if (labels == TRUTH) return prediction - truth;
  const REAL best = prediction - error / scale;
  if (labels == NONE) return prediction - best;
  if (labels == ONE_HOT) return prediction - (best > (REAL)0.5 ? (REAL)1 : (REAL)0);
  if (labels == SIMPLEX) return prediction - NAME(clip)(best, 0, 1);
  return prediction - NAME(clip)(best, truth - radius, truth + radius);
}

/* Take one step of a student, in place, and return its distance to the target. `pace` is rate u. */
INLINE REAL NAME(learn)(REAL *w, const REAL *x, const REAL *keep, const REAL *target, REAL pace) {
  REAL sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < STRIDE; k++) {
    w[k] = keep[k] * w[k] - pace * x[k];
    sum += (w[k] - target[k]) * (w[k] - target[k]);
  }
  return SQRT(sum);
}

INLINE REAL NAME(distance_of)(const REAL *w, const REAL *target) {
  REAL sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t k = 0; k < STRIDE; k++) sum += (w[k] - target[k]) * (w[k] - target[k]);
  return SQRT(sum);
}

/* Copy students into lanes, and record their first distances. Spare lanes repeat the first student. */
INLINE void NAME(load)(REAL *w, const REAL *params, REAL *distance, const REAL *target, int lanes, int count,
                       int64_t records) {
  for (int lane = 0; lane < lanes; lane++) {
    memcpy(w + lane * STRIDE, params + (lane < count ? lane : 0) * STRIDE, STRIDE * sizeof(REAL));
    if (lane < count) distance[lane * records] = NAME(distance_of)(w + lane * STRIDE, target);
  }
}

/* Show the examples that are proposed ([students][steps], or NULL: drawn). */
INLINE void NAME(show)(const Task *task, int labels, int64_t begin, int64_t end, const int32_t *proposals,
                       uint64_t seed, REAL *params, REAL *distance) {
  const REAL *x = task->x, *truth = task->truth, *goals = task->target_outputs, *scales = task->scales;
  const REAL *target = task->target, *keep = task->keep;
  const int64_t width = task->width, steps = task->steps;
  const REAL rate = (REAL)task->rate, shrink = (REAL)task->shrink, radius = (REAL)task->radius;
  REAL *w = aligned_alloc(64, (LANES * STRIDE * sizeof(REAL) + 63) / 64 * 64);
  for (int64_t first = begin; first < end; first += LANES) {
    const int count = end - first < LANES ? (int)(end - first) : LANES;
    REAL *records = distance + first * (steps + 1);
    uint64_t states[LANES];
    NAME(load)(w, params + first * STRIDE, records, target, LANES, count, steps + 1);
    for (int lane = 0; lane < LANES; lane++) states[lane] = first_state(seed, first + lane);
    for (int64_t step = 0; step < steps; step++) {
      const REAL *rows[LANES];
      REAL output[LANES], bias[LANES], goal[LANES], scale[LANES], label[LANES], pace[LANES];
      for (int lane = 0; lane < LANES; lane++) {
        const int64_t student = first + (lane < count ? lane : 0);
        const int64_t i = proposals ? proposals[student * steps + step] : draw(&states[lane], task->pool);
        const REAL *row = rows[lane] = x + i * STRIDE, *mine = w + lane * STRIDE;
        REAL sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < STRIDE; k++) sum += mine[k] * row[k];
        output[lane] = sum, bias[lane] = mine[width - 1];
        goal[lane] = goals[i], scale[lane] = scales[i], label[lane] = truth[i];
      }
#pragma omp simd
      for (int lane = 0; lane < LANES; lane++) {
        const REAL error = output[lane] - shrink * (output[lane] - bias[lane]) - goal[lane];
        pace[lane] = rate * NAME(gradient)(labels, output[lane], error, scale[lane], label[lane], radius);
      }
      for (int lane = 0; lane < LANES; lane++) {
        const REAL after = NAME(learn)(w + lane * STRIDE, rows[lane], keep, target, pace[lane]);
        if (lane < count) records[lane * (steps + 1) + step + 1] = after;
      }
    }
    memcpy(params + first * STRIDE, w, count * STRIDE * sizeof(REAL));
  }
  free(w);
}

/* Compute u of every example of the pool, and return the best example for the next step: G, up to a constant, over
   2 rate, is u (rate u ||x||^2 / 2 - <e, x>). */
INLINE int64_t NAME(choose)(const Task *task, int labels, const REAL *outputs, REAL bias, REAL *gradients,
                            REAL *scores) {
  const REAL *truth = task->truth, *goals = task->target_outputs, *scales = task->scales;
  const REAL shrink = (REAL)task->shrink, radius = (REAL)task->radius;
  REAL least = INFINITY;
#pragma omp simd reduction(min : least)
  for (int64_t i = 0; i < task->chunks * CHUNK; i++) {
    const REAL error = outputs[i] - shrink * (outputs[i] - bias) - goals[i];
    gradients[i] = NAME(gradient)(labels, outputs[i], error, scales[i], truth[i], radius);
    scores[i] = gradients[i] * ((REAL)0.5 * scales[i] * gradients[i] - error);
    least = scores[i] < least ? scores[i] : least;
  }
  int64_t first = 0; /* Bounded: where all scores are NaN, there is no least. */
  for (int found = 0; !found && first < task->chunks * CHUNK; first += CHUNK) {
#pragma omp simd reduction(| : found)
    for (int i = 0; i < CHUNK; i++) found |= scores[first + i] == least;
  }
  first -= CHUNK;
  while (scores[first] != least && first < task->pool - 1) first++;
  return first;
}

/* Show the best example of the pool. */
INLINE void NAME(show_best)(const Task *task, int labels, int64_t begin, int64_t end, REAL *params, REAL *distance) {
  const REAL *x = task->x, *columns = task->columns, *target = task->target, *keep = task->keep;
  const int64_t width = task->width, steps = task->steps, padded = task->chunks * CHUNK;
  REAL *w = aligned_alloc(64, (POOL_LANES * STRIDE * sizeof(REAL) + 63) / 64 * 64);
  REAL *outputs = aligned_alloc(64, (POOL_LANES + 2) * padded * sizeof(REAL));
  REAL *gradients = outputs + POOL_LANES * padded, *scores = gradients + padded;
  for (int64_t first = begin; first < end; first += POOL_LANES) {
    const int count = end - first < POOL_LANES ? (int)(end - first) : POOL_LANES;
    REAL *records = distance + first * (steps + 1);
    NAME(load)(w, params + first * STRIDE, records, target, POOL_LANES, count, steps + 1);
    for (int64_t step = 0; step < steps; step++) {
      for (int64_t start = 0; start < padded; start += CHUNK) {
        REAL sums[POOL_LANES][CHUNK] = {{0}};
        for (int64_t k = 0; k < width; k++) {
          const REAL *column = columns + k * padded + start;
          for (int lane = 0; lane < POOL_LANES; lane++) {
            const REAL weight = w[lane * STRIDE + k];
#pragma omp simd
            for (int i = 0; i < CHUNK; i++) sums[lane][i] += weight * column[i];
          }
        }
        for (int lane = 0; lane < POOL_LANES; lane++)
          memcpy(outputs + lane * padded + start, sums[lane], sizeof(sums[lane]));
      }
      for (int lane = 0; lane < count; lane++) {
        REAL *mine = w + lane * STRIDE;
        const int64_t i = NAME(choose)(task, labels, outputs + lane * padded, mine[width - 1], gradients, scores);
        const REAL pace = (REAL)task->rate * gradients[i];
        records[lane * (steps + 1) + step + 1] = NAME(learn)(mine, x + i * STRIDE, keep, target, pace);
      }
    }
    memcpy(params + first * STRIDE, w, count * STRIDE * sizeof(REAL));
  }
  free(outputs);
  free(w);
}

/* Teach the students from `begin` to `end`: update `params [students][STRIDE]`, write
   `distance [students][steps + 1]`. */
void NAME(teach)(const Task *task, int best, int labels, int64_t begin, int64_t end, const int32_t *proposals,
                 uint64_t seed, REAL *params, REAL *distance) {
#define WITH(set)                                                                                   \
  case set:                                                                                         \
    if (best)                                                                                       \
      NAME(show_best)(task, set, begin, end, params, distance);                                     \
    else                                                                                            \
      NAME(show)(task, set, begin, end, proposals, seed, params, distance);                         \
    break;
  switch (labels) {
    WITH(TRUTH)
    WITH(NONE)
    WITH(ONE_HOT)
    WITH(SIMPLEX)
    WITH(MAGNITUDE)
  }
#undef WITH
}

#endif
