// Two students, one with synthesized and one with true labels, iteration by iteration.

const PACE = 120; // Milliseconds of a frame.
const RIM = 0.15; // Around the points, in their units.
const SURE = Math.log(3); // The output at which a student is three quarters sure.

function svg(tag, settings = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(settings)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

const numeral = (value) => value.toFixed(2).replace("-", "−");

/** Colours of labels from the lowest to the highest, through those of the classes and a grey between them. */
function labelColors([low, high], count) {
  const style = getComputedStyle(document.documentElement);
  const named = ["below", "zero", "between", "one", "above"];
  const colors = named.map((name) => toOklab(style.getPropertyValue(`--${name}`).trim()));
  const stops = [Math.min(low, -1), 0, 0.5, 1, Math.max(high, 2)];
  return Array.from({ length: count }, (_, place) => {
    const label = low + ((high - low) * place) / (count - 1);
    const last = Math.max(1, stops.findIndex((stop) => label <= stop + 1e-9));
    const share = (label - stops[last - 1]) / (stops[last] - stops[last - 1]);
    return hexOf(fromOklab(colors[last].map((part, at) => share * part + (1 - share) * colors[last - 1][at])));
  });
}

/** One student's plane. Returns a function that shows a frame. */
function makePlane(element, given, side, labelsOf) {
  const ranges = [0, 1].map((axis) => extent(given.x.map((point) => point[axis])))
    .map(([low, high]) => [low - RIM, high + RIM]);
  const [width, height] = ranges.map(([low, high]) => 100 * (high - low));
  const place = ([x, y]) => [100 * (x - ranges[0][0]), 100 * (ranges[1][1] - y)];
  const points = given.x.map((point, at) => {
    const [x, y] = place(point);
    const shape = given.truth[at] === "1" ? "M0-5L5 0L0 5L-5 0Z" : "M-4 0A4 4 0 1 1 4 0A4 4 0 1 1-4 0Z";
    return svg("path", { d: shape, transform: `translate(${x.toFixed(1)} ${y.toFixed(1)})` });
  });
  const line = (boundary) => {
    const { x, y } = segment(boundary, ...ranges);
    const [from, to] = x.map((value, at) => place([value, y[at]]));
    return from && to ? `M${from.map((part) => part.toFixed(1))}L${to.map((part) => part.toFixed(1))}` : "";
  };
  const sure = ([a, b, c]) => [-SURE, SURE].map((output) => line([a, b, c + output])).join("");
  const paths = ["sure target", "halo", "target", "sure student", "halo", "student"]
    .map((name) => svg("path", { class: name }));
  const trace = (three, boundary) => {
    three[0].setAttribute("d", sure(boundary));
    three.slice(1).forEach((path) => path.setAttribute("d", line(boundary)));
  };
  trace(paths.slice(0, 3), given.optimal);
  const ring = svg("circle", { class: "ring", r: 11 });
  const number = svg("text", { class: "number" });
  const view = svg("svg", { viewBox: `0 0 ${width.toFixed(1)} ${height.toFixed(1)}`, "aria-hidden": "true" },
    svg("g", { class: "points" }, ...points), ...paths, ring, number);
  element.querySelector(".plot").replaceChildren(view);
  const state = element.querySelector(".state");

  return (frame, colors) => {
    const levels = labelsOf(frame);
    points.forEach((point, at) => {
      if (point.getAttribute("fill") !== colors[levels[at]]) point.setAttribute("fill", colors[levels[at]]);
    });
    trace(paths.slice(3), side.boundaries[frame]);
    const shown = given.shown[frame];
    const [x, y] = place(given.x[shown]);
    ring.setAttribute("cx", x.toFixed(1));
    ring.setAttribute("cy", y.toFixed(1));
    number.textContent = numeral(side.labels[frame]);
    number.setAttribute("x", x > width - 80 ? x - 16 : x + 16);
    number.setAttribute("text-anchor", x > width - 80 ? "end" : "start");
    number.setAttribute("y", Math.min(height - 8, Math.max(20, y + 7)));
    state.textContent = `shown with the label ${numeral(side.labels[frame])}, the true one is ${given.truth[shown]}; ` +
      `distance to the target ${numeral(side.distance[frame])}`;
  };
}

/** Both distances over the iterations. Returns a function that moves the dots. */
function makeCourse(element, sides) {
  const plot = element.querySelector(".plot");
  const last = sides[0].distance.length - 1;
  const highest = Math.max(...sides.flatMap((side) => side.distance));
  let move = () => {};
  const build = () => {
    const [width, height] = [Math.max(240, plot.clientWidth), 150];
    const [left, right, top, bottom] = [30, 8, 12, 36];
    const x = (frame) => left + ((width - left - right) * frame) / Math.max(last, 1);
    const y = (distance) => height - bottom - ((height - top - bottom) * distance) / highest;
    const view = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" });
    const text = (content, settings) => view.append(svg("text", settings, content));
    const rule = (d) => view.append(svg("path", { class: "rule", d }));
    const step = [1, 2, 5, 10, 20, 50, 100].find((size) => highest / size <= 4) ?? highest / 4;
    for (let value = 0; value <= highest; value += step) {
      rule(`M${left} ${y(value).toFixed(1)}H${width - right}`);
      text(String(value), { x: left - 6, y: y(value) + 4, "text-anchor": "end" });
    }
    const spacing = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((size) => last / size <= width / 90) ?? last;
    for (let frame = 0; frame <= last; frame += spacing) {
      text(String(frame), { x: x(frame), y: height - bottom + 16, "text-anchor": "middle" });
    }
    text("iteration", { x: (left + width - right) / 2, y: height - 3, "text-anchor": "middle" });
    const dots = sides.map((side, place) => {
      const points = side.distance.map((distance, frame) => `${x(frame).toFixed(1)},${y(distance).toFixed(1)}`);
      view.append(svg("polyline", { class: `curve side-${place}`, points: points.join(" ") }));
      const dot = svg("circle", { class: `dot side-${place}`, r: 6 });
      const at = Math.round(0.6 * last);
      const above = place === 1 || y(side.distance[at]) > 0.7 * height;
      text(side.name, { class: `side-${place}`, x: x(at), y: y(side.distance[at]) + (above ? -8 : 18) });
      return dot;
    });
    view.append(...dots);
    move = (frame) => dots.forEach((dot, place) => {
      dot.setAttribute("cx", x(frame).toFixed(1));
      dot.setAttribute("cy", y(sides[place].distance[frame]).toFixed(1));
    });
    plot.replaceChildren(view);
  };
  return { build, show: (frame) => move(frame) };
}

function demonstration(given) {
  const section = document.getElementById("opening");
  const last = given.shown.length - 1;
  const [zero, one] = [0, 1].map((label) => {
    const [low, high] = given.range;
    return Math.round(((label - low) / (high - low)) * (given.levels.length - 1));
  });
  const truth = [...given.truth].map((label) => (label === "1" ? one : zero));
  const levelOf = new Map([...given.levels].map((letter, level) => [letter, level]));
  const synthesized = (frame) => [...given.labels[frame]].map((letter) => levelOf.get(letter));
  const planes = [synthesized, () => truth].map((labelsOf, place) =>
    makePlane(document.getElementById(`opening-${place}`), given, given.sides[place], labelsOf));
  const course = makeCourse(section.querySelector(".course"), given.sides);

  const range = make("input", { type: "range", min: 0, max: last, step: 1, value: 0, "aria-label": "Iteration" });
  const button = make("button", { type: "button", className: "play" });
  const output = make("span", { className: "now" });
  const box = section.querySelector(".frames");
  box.append(button, range, output);
  box.hidden = false;
  let colors = [];
  let frame = 0;
  let playing = null; // Of requestAnimationFrame.

  const show = (wanted) => {
    frame = Math.min(last, Math.max(0, wanted));
    planes.forEach((plane) => plane(frame, colors));
    course.show(frame);
    const distances = given.sides.map((side) => `${side.name} ${numeral(side.distance[frame])}`).join(", ");
    range.value = frame;
    range.setAttribute("aria-valuetext", `iteration ${frame}; distances to the target: ${distances}`);
    output.textContent = `iteration ${frame} of ${last}`;
  };
  const label = () => {
    button.textContent = playing !== null ? "Pause" : frame === last ? "Play again" : "Play";
  };
  const stop = () => {
    if (playing !== null) cancelAnimationFrame(playing);
    playing = null;
    label();
  };
  const play = () => {
    if (frame === last) show(0);
    let before = performance.now();
    const next = (now) => {
      const frames = Math.floor((now - before) / PACE);
      if (frames > 0) {
        before += frames * PACE;
        show(frame + Math.min(frames, 3)); // A page that was in the background does not leap to the end.
      }
      if (frame === last) stop();
      else playing = requestAnimationFrame(next);
    };
    playing = requestAnimationFrame(next);
    label();
  };
  button.addEventListener("click", () => (playing === null ? play() : stop()));
  range.addEventListener("input", () => {
    stop();
    show(Number(range.value));
    label();
  });

  const paint = () => {
    colors = labelColors(given.range, given.levels.length);
    const style = theme();
    const shape = (symbol, name) => make("li", {}, swatch({ symbol, fill: style.muted, color: style.muted }), name);
    const scale = make("li", { className: "scale" }, make("span", { className: "bar" }), "label now");
    scale.firstChild.style.background = `linear-gradient(to right, ${colors.join(", ")})`;
    const marks = [given.range[0], 0, 1, given.range[1]].map((label, at, all) => (
      all.indexOf(label) === at ? `${numeral(label).replace(/\.?0+$/, "") || "0"}` : ""));
    scale.append(`: ${marks.filter(Boolean).join(", ")}`);
    const line = (dash, color, name) => make("li", {}, swatch({ dash, color }), name);
    document.getElementById("opening-key").replaceChildren(
      scale, shape("circle", "true label 0"), shape("diamond", "true label 1"),
      line("solid", style.current, "student"), line("7px,5px", style.optimal, "target"),
      make("li", {}, "thin lines: ¾ sure"),
      make("li", {}, swatch({ symbol: "circle", fill: "none", color: style.text, outline: style.text }), "shown now"),
    );
    show(frame);
  };
  const [best, other] = given.sides;
  section.querySelector(".course .note").textContent =
    `${best.name} comes from ${numeral(best.distance[0])} to ${numeral(best.distance[last])} in ${last} iterations, ` +
    `${other.name} to ${numeral(other.distance[last])}.`;
  course.build();
  paint();
  label();
  dark.addEventListener("change", paint);
  new ResizeObserver(() => { course.build(); course.show(frame); }).observe(section.querySelector(".course .plot"));
  // Once, when it is seen, unless the system asks for no motion; it stops by itself, and the button stops it at once.
  const still = matchMedia("(prefers-reduced-motion: reduce)");
  let begun = still.matches;
  still.addEventListener("change", () => { if (still.matches) stop(); });
  new IntersectionObserver(([entry]) => {
    if (entry.isIntersecting && !begun) {
      begun = true;
      play();
    } else if (!entry.isIntersecting) stop();
  }, { threshold: 0.2 }).observe(section.querySelector(".sides"));
}
