// Labels of points in the plane, frame by frame.

/** The two ends of a x + b y + c = 0 within the box; none if it lies outside. */
function segment([a, b, c], [left, right], [bottom, top]) {
  const ends = [];
  const add = (x, y) => {
    const slack = 1e-9 * (right - left + top - bottom);
    const inside = x >= left - slack && x <= right + slack && y >= bottom - slack && y <= top + slack;
    if (inside && !ends.some(([x0, y0]) => Math.hypot(x - x0, y - y0) < slack)) ends.push([x, y]);
  };
  if (b) for (const x of [left, right]) add(x, -(a * x + c) / b);
  if (a) for (const y of [bottom, top]) add(-(b * y + c) / a, y);
  return { x: ends.slice(0, 2).map(([x]) => x), y: ends.slice(0, 2).map(([, y]) => y) };
}

function drawLabels(element, frames, state) {
  const colors = theme();
  const ranges = [0, 1].map((place) => roomy(extent(frames.x.map((point) => point[place])), false, 0.06));
  const labels = frames.labels[state.frame];
  const points = ["0", "1"].map((label) => {
    const chosen = frames.x.map((_, at) => at).filter((at) => labels[at] === label);
    const differs = chosen.map((at) => frames.truth[at] !== label);
    return {
      type: "scatter", mode: "markers", name: `label ${label}`, meta: { part: `label ${label}` },
      x: chosen.map((at) => frames.x[at][0]), y: chosen.map((at) => frames.x[at][1]),
      text: differs.map((other) => `label ${label}${other ? `, truth ${1 - label}` : ""}`),
      hovertemplate: "%{text}<extra></extra>",
      marker: {
        symbol: label === "1" ? "diamond" : "circle", color: label === "1" ? colors.one : colors.zero, size: 7,
        opacity: 1, line: { color: colors.text, width: differs.map((other) => (other ? 2 : 0)) },
      },
    };
  });
  const boundary = (name, line, color, dash) => ({
    type: "scatter", mode: "lines", name, meta: { part: name }, hoverinfo: "skip", ...segment(line, ...ranges),
    line: { color, width: 2.6, dash },
  });
  const traces = [
    ...points, boundary("optimal boundary", frames.optimal, colors.optimal, "7px,5px"),
    boundary("boundary", frames.boundaries[state.frame], colors.current, "solid"),
  ];
  // The height that equal scales need.
  const [across, up] = ranges.map(([from, to]) => to - from);
  element.querySelector(".plot").style.aspectRatio = String((0.92 * across) / up);
  const side = { fixedrange: true, constrain: "domain" };
  const layout = {
    ...baseLayout(colors), dragmode: false, margin: { l: 34, r: 8, t: 10, b: 28 },
    xaxis: axis(colors, { ...side, title: title("x₁") }, false, ranges[0]),
    yaxis: axis(colors, { ...side, title: title("x₂"), scaleanchor: "x" }, false, ranges[1]),
  };
  const plot = element.querySelector(".plot");
  return Plotly.react(plot, traces, layout, CONFIG).then(() => finishPlot(plot));
}

function labelControls(element, frames, state, redraw) {
  const last = frames.steps.length - 1;
  const key = make("ul", { className: "key" });
  const paint = () => {
    const { zero, one, text, current, optimal } = theme();
    const items = [
      ["label 0", { symbol: "circle", fill: zero, color: zero }],
      ["label 1", { symbol: "diamond", fill: one, color: one }],
      ["not the truth", { symbol: "circle", fill: "none", outline: text }],
      ["boundary", { dash: "solid", color: current }], ["optimal boundary", { dash: "7px,5px", color: optimal }],
    ];
    key.replaceChildren(...items.map(([name, look]) => make("li", {}, swatch(look), name)));
  };
  paint();
  dark.addEventListener("change", paint);
  element.querySelector("figcaption").append(key);

  const name = `${element.id}-frame`;
  const settings = { id: name, min: 0, max: last, step: 1, value: 0, "aria-label": "Iteration" };
  const range = make("input", { type: "range", ...settings });
  const output = make("output", { htmlFor: name });
  const [back, next] = ["Previous", "Next"].map((text) => make("button", { type: "button" }, text));
  const go = (frame, draw = true) => {
    state.frame = Math.min(last, Math.max(0, frame));
    const labels = frames.labels[state.frame];
    const count = [...labels].filter((label, at) => label !== frames.truth[at]).length;
    const text = `iteration ${frames.steps[state.frame]}: ${count} of ${labels.length} labels differ from the truth`;
    range.value = state.frame;
    range.setAttribute("aria-valuetext", text);
    output.textContent = text;
    // Not `disabled`, which would take the focus from the button just pressed.
    back.setAttribute("aria-disabled", String(state.frame === 0));
    next.setAttribute("aria-disabled", String(state.frame === last));
    if (draw) redraw();
  };
  range.addEventListener("input", () => go(Number(range.value)));
  back.addEventListener("click", () => go(state.frame - 1));
  next.addEventListener("click", () => go(state.frame + 1));
  element.querySelector(".note").before(make("div", { className: "frames" }, back, range, next, output));
  go(0, false);
}
