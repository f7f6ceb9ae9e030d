// Ranges, ticks and layouts of charts.

/** Lowest and highest of the numbers, or null. */
function extent(numbers, positive) {
  let low = Infinity, high = -Infinity;
  for (const number of numbers) {
    if (number === null || (positive && number <= 0)) continue;
    low = Math.min(low, number);
    high = Math.max(high, number);
  }
  return low <= high ? [low, high] : null;
}

/** Plotly's range for [low, high], wider on both sides by a share of the length (on a log axis, of the decades). */
function roomy([low, high], log, share) {
  const [from, to] = log ? [Math.log10(low), Math.log10(high)] : [low, high];
  const least = log ? 0.06 : 0.02 * Math.max(Math.abs(from), Math.abs(to)) || 0.5;
  const room = Math.max(share * (to - from), to === from ? least : 0);
  return [from - room, to + room];
}

/**
 * The y axis shows all means, and the bands and levels near them: bands of few seeds can reach far and would squeeze
 * the curves. Returns the range and the levels that it shows.
 */
function heights(chart, lines, log) {
  const means = extent(lines.flatMap((line) => line.mean), log);
  const levels = chart.levels.filter(([, level]) => level !== null && !(log && level <= 0));
  if (!means) return { range: null, levels: [] };
  const [low, high] = means;
  const [lower, upper] = log ? ["log_low", "log_high"] : ["low", "high"];
  const bands = extent(lines.flatMap((line) => [...line[lower], ...line[upper]]), log);
  const span = high - low || Math.abs(high) || 1;
  const reach = (far, place) => { // The end of the bands, within limits.
    if (log) return place < 0 ? Math.max(far, low / 3) : Math.min(far, high * 3);
    return place < 0 ? Math.max(far, low - 0.25 * span) : Math.min(far, high + 0.25 * span);
  };
  const ends = [Math.min(low, bands ? reach(bands[0], -1) : low), Math.max(high, bands ? reach(bands[1], 1) : high)];
  const near = levels.filter(([, level]) =>
    log ? level >= low / NEAR && level <= high * NEAR : level >= low - 0.5 * span && level <= high + 0.5 * span);
  for (const [, level] of near) {
    ends[0] = Math.min(ends[0], level);
    ends[1] = Math.max(ends[1], level);
  }
  const range = roomy(ends, log, 0.05);
  // Room for the names of levels that lie near either end.
  const length = range[1] - range[0];
  for (const [, level] of near) {
    const height = log ? Math.log10(level) : level;
    if (height - range[0] < 0.12 * length) range[0] = Math.min(range[0], height - 0.12 * length);
    if (range[1] - height < 0.12 * length) range[1] = Math.max(range[1], height + 0.12 * length);
  }
  return { range, levels: near };
}

/** Polygons around the band, one for every interval without missing numbers. */
function band(x, low, high, xLog) {
  const polygon = { x: [], y: [] };
  let run = [];
  const close = () => {
    if (run.length > 1) {
      const back = [...run].reverse();
      if (polygon.x.length) { polygon.x.push(null); polygon.y.push(null); }
      polygon.x.push(...run.map((at) => x[at]), ...back.map((at) => x[at]));
      polygon.y.push(...run.map((at) => high[at]), ...back.map((at) => low[at]));
    }
    run = [];
  };
  x.forEach((value, at) => {
    if (value === null || (xLog && value <= 0) || low[at] === null || high[at] === null) close();
    else run.push(at);
  });
  close();
  return polygon;
}

/** Positions of the markers: even along the drawn axis, and different for every curve. */
function markerPlaces(x, y, [from, to], xLog, shift) {
  const places = new Set();
  const at = x.map((value) => (value === null || (xLog && value <= 0) ? null : xLog ? Math.log10(value) : value));
  for (let number = 0; number < MARKERS; number++) {
    const wanted = from + ((number + 0.15 + 0.8 * shift) / MARKERS) * (to - from);
    let best = -1;
    at.forEach((value, place) => {
      if (value === null || y[place] === null) return;
      if (best < 0 || Math.abs(value - wanted) < Math.abs(at[best] - wanted)) best = place;
    });
    // None beyond the end of a curve, where all would fall on its last point.
    if (best >= 0 && Math.abs(at[best] - wanted) <= (to - from) / MARKERS / 2) places.add(best);
  }
  return [...places];
}

/** A number as people write it: 0.02, 50, 20,000; beyond that, or if asked to, as a power of ten. */
function tickText(value, powers) {
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  const share = Number((value / 10 ** exponent).toPrecision(6));
  if ((exponent < -3 || exponent > 5 || powers) && value !== 1 && value !== 10) {
    const power = `10<sup>${String(exponent).replace("-", "−")}</sup>`;
    return share === 1 ? power : `${share}·${power}`;
  }
  const text = String(Number(value.toPrecision(6)));
  return value >= 1e4 ? text.replace(/\B(?=(\d{3})+$)/g, ",") : text;
}

/**
 * Ticks of a logarithmic axis from 10^from to 10^to, at most `most`: 1, 2, 5, 10, 20, 50; powers of ten where those are
 * too many; and even steps, 2.6, 2.8, 3, where there are hardly any.
 */
function logTicks([from, to], most) {
  const within = (value) => value >= 10 ** (from - 1e-9) && value <= 10 ** (to + 1e-9);
  const ticks = (parts, every) => {
    const found = [];
    for (let decade = Math.floor(from / every) * every; decade <= to; decade += every) {
      found.push(...parts.map((part) => Number((part * 10 ** decade).toPrecision(6))).filter(within));
    }
    return found;
  };
  let values = [[1, 2, 5], [1]].map((parts) => ticks(parts, 1)).find((found) => found.length <= most);
  values ??= ticks([1], Math.ceil((to - from) / most));
  if (values.length < 3) {
    const [low, high] = [10 ** from, 10 ** to];
    const digits = Math.floor(Math.log10((high - low) / most));
    const step = [1, 2, 5, 10].map((part) => part * 10 ** digits).find((size) => (high - low) / size <= most + 1);
    values = [];
    for (let count = Math.ceil(low / step); count * step <= high; count++) {
      values.push(Number((count * step).toPrecision(6)));
    }
  }
  const powers = to - from > 1.5 && values.some((value) => value < 1e-3 || value >= 1e6);
  return { tickmode: "array", tickvals: values, ticktext: values.map((value) => tickText(value, powers)) };
}

const MOST_TICKS = { x: 7, y: 8 };

/** Ticks follow a zoom; and a screen reader hears the chart's name and table, not its drawing. */
function finishPlot(plot) {
  for (const child of plot.children) child.setAttribute("aria-hidden", "true");
  document.getElementById("js-plotly-tester")?.setAttribute("aria-hidden", "true"); // Plotly measures texts in it.
  if (plot.dataset.followed) return;
  plot.dataset.followed = "true";
  plot.on("plotly_relayout", (event) => {
    const changes = {};
    for (const name of ["x", "y"]) {
      const zoomed = Object.keys(event).some((key) => key.startsWith(`${name}axis.range`));
      const { type, range } = plot._fullLayout[`${name}axis`];
      if (!zoomed || type !== "log") continue;
      for (const [key, value] of Object.entries(logTicks(range, MOST_TICKS[name]))) {
        changes[`${name}axis.${key}`] = value;
      }
    }
    if (Object.keys(changes).length) Plotly.relayout(plot, changes);
  });
}

const title = (text) => ({ text, standoff: 8, font: { size: 13 } });

function axis(colors, settings, log, range, most) {
  return {
    type: log ? "log" : "linear", range: range ?? undefined, autorange: !range, automargin: true, zeroline: false,
    gridcolor: colors.grid, linecolor: colors.edge, showline: true, ticks: "outside", ticklen: 4,
    tickcolor: colors.edge, exponentformat: "power", nticks: 7, minexponent: 4, tickfont: { size: 12 },
    ...(log && range ? logTicks(range, most) : {}), ...settings,
  };
}

function baseLayout(colors) {
  return {
    paper_bgcolor: colors.paper, plot_bgcolor: colors.paper, showlegend: false, hovermode: "closest",
    dragmode: DRAG, font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colors.text },
    margin: { l: 50, r: 14, t: 12, b: 44 }, hoverlabel: { align: "left", namelength: -1 },
  };
}
