"""Names and abbreviations of the page, spelled out."""

from collections.abc import Mapping

NAMES: Mapping[str, str] = {
  "w, w*": "The student's parameters, and the target: the parameters to which a teacher leads it. ‖w − w*‖ is the "
  "distance between them.",
  "η": "The learning rate.",
  "SGD": "Stochastic gradient descent: random examples with their true labels. No teacher.",
  "IMT": "Iterative machine teaching: the teacher picks the most useful example of the pool and shows it with its true "
  "label.",
  "LAST": "Label synthesis teaching, the paper's method: random examples, and the teacher chooses their labels. In "
  "brackets, the set of labels that it may choose from. Greedy: one step at a time.",
  "mixed": "The teacher picks the example as IMT does, and then chooses its label. Joint mixed: both at once.",
  "one_hot, simplex, none": "Sets of labels: a single class; any mixture of classes (soft labels); any numbers.",
  "r = 1": "Labels at most 1 away from the truth (or, if it says so, from the student's prediction).",
  "GIT(m, v)": "Generalised iterative teaching: the labels of v steps with m examples each are planned at once.",
  "label smoothing, distillation, self-training": "The soft labels of practice: the truth mixed with all classes; what "
  "a trained network predicts; what the student itself predicts. None of them depends on where the student is to go.",
  "unrolled, policy gradient": "How networks that teach were trained: by gradients through the student's next steps, "
  "or by rewards for trying labels (REINFORCE).",
  "omniscient, black box": "A teacher that sees w*, and one that sees only the student's loss.",
  "theorem 1, 2, 3": "Teachers whose labels realise the step sizes g of the paper's theorems; bounds are dotted.",
  "MNIST 3/5": "The digits 3 and 5 of MNIST, images of handwritten digits (Modified National Institute of Standards "
  "and Technology database).",
  "Adam": "A gradient method with adaptive step sizes (adaptive moment estimation).",
  "CNN": "Convolutional neural network.",
  "ReLU": "Rectified linear unit: max(0, x).",
  "BCa": "Bias-corrected and accelerated bootstrap, of the 95 % intervals.",
  "reading": "One of the settings that the paper's text allows. Literal is the first, as written.",
  "seed": "One draw of everything random: data, start and examples; the same for all methods.",
}
