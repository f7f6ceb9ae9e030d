"""Learners to choose from: linear ones, networks of our own, and networks of other libraries or of plain functions."""

from collections.abc import Callable, Sequence
from typing import Any

import optax

from last_jax import checks, losses, models, modules, remade
from last_jax.base import Array, Key, Params
from last_jax.learner import Learner, build, check_learns_from

__all__ = [
  "Learner", "check_learns_from", "from_apply", "from_equinox", "from_flax", "least_squares", "logistic", "mlp",
  "softmax", "svm",
]  # fmt: skip


def least_squares(
  num_features: int,
  num_outputs: int = 1,
  *,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """Linear regression, loss ||z - y||^2 / 2.

  Args:
    num_features: d, the length of x.
    num_outputs: K, the length of a label.
    learning_rate: eta, a number or an optax schedule.
    weight_decay: lambda.
    bias: whether there is an intercept.
    momentum: of heavy-ball or, with `nesterov`, Nesterov's SGD.
    nesterov: see `momentum`.
    optimizer: any optax transformation, in place of learning_rate, momentum and nesterov. `optax.sgd(...)` gives the
      same learner as they do.
  """
  num_features = checks.check_count("num_features", num_features)
  num_outputs = checks.check_count("num_outputs", num_outputs)
  model = models.Linear(num_features, num_outputs, checks.check_flag("bias", bias))
  return build(model, losses.squared_error, learning_rate, momentum, nesterov, weight_decay, optimizer)


def logistic(
  num_features: int,
  *,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  form: str = "cross_entropy",
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """Logistic regression with one output; settings as in `least_squares`.

  Args:
    form: "cross_entropy": the label y is the probability of class 1, the gradient sigmoid(z) - y. "margin": the loss is
      log(1 + exp(-y z)), classes are labelled -1 and +1, and labels may be any real number.
  """
  num_features = checks.check_count("num_features", num_features)
  forms = {"cross_entropy": losses.sigmoid_cross_entropy, "margin": losses.margin_logistic}
  loss = forms[checks.check_name("form", form, forms)]
  model = models.Linear(num_features, 1, checks.check_flag("bias", bias))
  return build(model, loss, learning_rate, momentum, nesterov, weight_decay, optimizer)


def softmax(
  num_features: int,
  num_classes: int,
  *,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """Multinomial logistic regression, `num_classes` outputs; settings as in `least_squares`.

  Cross-entropy's gradient is (sum of y) p - y: labels need not sum to one. Gradients of the classes always sum to zero,
  so the part of w - w* that is equal for all classes can never be taught: see `last_jax.unreachable_distance`.
  """
  num_features = checks.check_count("num_features", num_features)
  num_classes = checks.check_count("num_classes", num_classes, least=2)
  model = models.Linear(num_features, num_classes, checks.check_flag("bias", bias))
  return build(model, losses.softmax_cross_entropy, learning_rate, momentum, nesterov, weight_decay, optimizer)


def svm(
  num_features: int,
  num_classes: int = 2,
  *,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """A linear support vector machine: hinge loss; other settings as in `least_squares`.

  With two classes there is one output, and labels are -1 and +1 or any number; with more, the loss is Crammer and
  Singer's (see `losses.hinge`). Its gradient jumps as the label changes, so that labels are searched for numerically:
  never worse than the ground truth, but `exact=False` in their certificates, except single one-hot labels, which are
  tried one by one. The loss has corners, at which `fit_target` does not converge: take w* from a solver for support
  vector machines.
  """
  num_features = checks.check_count("num_features", num_features)
  num_classes = checks.check_count("num_classes", num_classes, least=2)
  model = models.Linear(num_features, 1 if num_classes == 2 else num_classes, checks.check_flag("bias", bias))
  return build(model, losses.hinge, learning_rate, momentum, nesterov, weight_decay, optimizer)


def mlp(
  widths: Sequence[int],
  *,
  learning_rate: Any = None,
  activation: str | Callable[[Array], Array] = "relu",
  loss: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """A fully connected network; other settings as in `least_squares`.

  Args:
    widths: (features, hidden..., outputs), such as (24, 32, 5).
    activation: "relu", "leaky_relu" (slope 0.01), "tanh", or a function.
    loss: softmax cross-entropy unless given (sigmoid cross-entropy with one output); a name, a function or a Loss.
  """
  widths = checks.check_sequence("widths", widths, "a list of whole numbers, such as (24, 32, 5)")
  if len(widths) < 2:
    raise ValueError(f"widths must name at least the features and the outputs, such as (24, 32, 5), but it is {widths}")
  widths = tuple(checks.check_count("widths", width) for width in widths)
  if isinstance(activation, str):
    checks.check_name("activation", activation, models.ACTIVATIONS)
  elif not callable(activation):
    raise TypeError(f"activation must be a name or a function, but it is a {type(activation).__name__}")
  else:
    remade.warn_if_remade("activation", activation)
  default = losses.sigmoid_cross_entropy if widths[-1] == 1 else losses.softmax_cross_entropy
  chosen = default if loss is None else losses.as_loss(loss)
  model = models.Mlp(widths, activation, checks.check_flag("bias", bias))
  return build(model, chosen, learning_rate, momentum, nesterov, weight_decay, optimizer)


def from_apply(
  init_fn: Callable[[Key], Params],
  apply_fn: Callable[[Params, Array], Array],
  loss: Any,
  *,
  optimizer: optax.GradientTransformation | None = None,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  momentum: Any = None,
  nesterov: bool = False,
) -> Learner:
  """A learner from any model, as plain functions. See also `from_flax` and `from_equinox`.

  Functions with equal code and equal contents of their closures share compiled programs: see `last_jax.identity`.

  Args:
    init_fn: `key -> params`, any pytree of floating point arrays.
    apply_fn: `(params, x [m, ...]) -> outputs [m, K]`, or `[m, T, K]` for models with an output, and a label, for each
      token. Examples must not influence each other (no batch statistics). Inputs are floats: convert token ids.
    loss: a name ("softmax_cross_entropy", ...), a function `(outputs [K], label [K]) -> []`, or a `losses.Loss`. If its
      gradient is affine in the label, greedy labels are exact; otherwise they are searched for numerically.
    optimizer: any optax transformation. If its step is affine in the gradient (SGD, momentum, weight decay), greedy
      labels are exact; otherwise (Adam, clipping) they are searched for numerically, through the optimizer.
    learning_rate: in place of `optimizer`: SGD's step size, with `momentum` and `nesterov`.
    weight_decay: lambda, added to the gradient of leaves with two dimensions or more.
    momentum: see `learning_rate`.
    nesterov: see `learning_rate`.
  """
  for name, function in (("init_fn", init_fn), ("apply_fn", apply_fn)):
    if not callable(function):
      raise TypeError(f"{name} must be a function, but it is a {type(function).__name__}")
    remade.warn_if_remade(name, function)
  model = models.Custom(init_fn, apply_fn)
  return build(model, losses.as_loss(loss), learning_rate, momentum, nesterov, weight_decay, optimizer)


def from_flax(
  module: Any,
  x: Array,
  *,
  loss: Any,
  variables: Any = None,
  optimizer: optax.GradientTransformation | None = None,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  momentum: Any = None,
  nesterov: bool = False,
) -> Learner:
  """A learner from a Flax module; settings other than these as in `from_apply`.

  The module is evaluated as after training: batch statistics, and all other variables that are no parameters, stay as
  they are, and dropout is off. (Arguments of its call named train, training or is_training are False, deterministic or
  use_running_average True; an nnx module is copied, and its copy set to `eval()`.)

  Args:
    module: a linen module, whose parameters are `module.init(key, x)["params"]`. Or an nnx module: `learner.init`
      returns its own parameters, whatever the key. Or a function `rngs -> nnx module`, as `lambda rngs: Net(rngs=rngs)`
      or `functools.partial(Net, 10)`: `learner.init(key)` then makes random parameters. Those of nnx are a dict:
      `nnx.update(module, params)` puts them into a module.
    x: a batch of inputs `[m, ...]`, as `x[:1]`. If they are integers, as token ids, inputs are converted to integers.
    loss: as for `from_apply`; acts on outputs `[K]`, also if there are some for each token.
    variables: of a linen module, trained: the collections besides "params", such as "batch_stats". Those of
      `module.init(jax.random.key(0), x)` unless given.
  """
  model, constants = modules.linen_or_nnx(module, x, variables)
  models.output_shape(model, x.shape[1:], x.dtype)  # Errors in the module are raised here.
  return build(model, losses.as_loss(loss), learning_rate, momentum, nesterov, weight_decay, optimizer, constants)


def from_equinox(
  model: Any,
  x: Array | None = None,
  *,
  loss: Any,
  optimizer: optax.GradientTransformation | None = None,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  momentum: Any = None,
  nesterov: bool = False,
) -> Learner:
  """A learner from an Equinox module of one example, which is mapped over batches; other settings as in `from_apply`.

  The module is evaluated in `eqx.nn.inference_mode`: its `eqx.nn.State`, such as batch statistics, stays as it is, and
  dropout is off.

  Args:
    model: a module, or (module, state): `learner.init` returns its own parameters, whatever the key. Or a function of
      a key that returns either, as `lambda key: Net(key=key)` or `eqx.nn.make_with_state(Net)`: `learner.init(key)`
      then makes random parameters. Parameters are `eqx.filter(model, eqx.is_inexact_array)`; `eqx.combine(params,
      model)` puts them into a module.
    x: a batch of inputs `[m, ...]`, as `x[:1]`. If they are integers, as token ids, inputs are converted to integers.
      Needed for such modules only.
    loss: as for `from_apply`; acts on outputs `[K]`, also if there are some for each token.
  """
  network, constants = modules.equinox(model, x)
  if x is not None:
    models.output_shape(network, x.shape[1:], x.dtype)  # Errors in the module are raised here.
  return build(network, losses.as_loss(loss), learning_rate, momentum, nesterov, weight_decay, optimizer, constants)
