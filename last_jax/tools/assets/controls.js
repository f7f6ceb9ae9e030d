// Controls of the charts of a section.

/** Charts in groups that have methods in common. */
function related(charts) {
  const groups = [];
  for (const chart of charts) {
    const names = new Set(chart.content.lines.map((line) => line.name));
    const near = groups.filter((group) => [...names].some((name) => group.names.has(name)));
    const joined = { names, charts: [chart] };
    for (const group of near) {
      joined.charts.unshift(...group.charts);
      group.names.forEach((name) => joined.names.add(name));
      groups.splice(groups.indexOf(group), 1);
    }
    groups.push(joined);
  }
  return groups.map((group) => group.charts);
}

/** Checkboxes of the methods of some charts. */
function methodBoxes(charts, redraw, state) {
  const lines = new Map(charts.flatMap((chart) => chart.lines).map((line) => [line.name, line]));
  const boxes = [];
  const methods = make("fieldset", { className: "methods" }, make("legend", {}, "Methods"));
  for (const [name, line] of lines) {
    const input = make("input", { type: "checkbox", checked: true });
    const label = make("label", { className: "method" }, input, make("span", {}, name));
    const paint = () => {
      label.querySelector("svg")?.remove();
      const color = shown(line.color);
      input.after(swatch({ color, dash: line.dash, symbol: line.symbol, fill: theme().paper }));
    };
    input.addEventListener("change", () => {
      if (input.checked) state.hidden.delete(name);
      else state.hidden.add(name);
      redraw();
    });
    paint();
    dark.addEventListener("change", paint);
    boxes.push(input);
    methods.append(label);
  }
  if (lines.size > 1) {
    for (const [text, checked] of [["All", true], ["None", false]]) {
      const button = make("button", { type: "button" }, text);
      button.addEventListener("click", () => {
        boxes.forEach((input) => { input.checked = checked; });
        for (const name of lines.keys()) checked ? state.hidden.delete(name) : state.hidden.add(name);
        redraw();
      });
      methods.append(button);
    }
  }
  return methods;
}

function controls(section, own, redraw, state) {
  const box = section.querySelector(".controls");
  const charts = own.map(({ content }) => content);
  // Methods of one chart only are listed with it: a long list of all of them would say nothing about each chart.
  const groups = related(own);
  for (const group of groups) {
    const methods = methodBoxes(group.map(({ content }) => content), redraw, state);
    if (groups.length > 1 && group.length === 1) group[0].element.querySelector("figcaption").append(methods);
    else box.append(methods);
  }
  for (const [key, log] of [["y", "log"], ["x", "x_log"]]) {
    const kinds = new Set(charts.map((chart) => (chart[log] ? "log" : "linear")));
    if (kinds.size === 1) [state[key]] = kinds;
    // Where charts start with different scales, a third choice restores them.
    const choices = [["linear", "linear"], ["log", "log"], ...(kinds.size > 1 ? [["own", "each its own"]] : [])];
    const group = make("fieldset", { className: `scale-${key}` }, make("legend", {}, `${key} axis`));
    const buttons = choices.map(([choice, text]) => {
      const settings = { "data-choice": choice, "aria-pressed": String(state[key] === choice) };
      const button = make("button", { type: "button", ...settings }, text);
      button.addEventListener("click", () => {
        state[key] = choice;
        buttons.forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
        redraw();
      });
      return button;
    });
    group.append(...buttons);
    box.append(group);
  }
  const names = [...new Set(charts.flatMap((chart) => chart.lines.flatMap((line) => Object.keys(line.axes))))];
  state.axis = names[0];
  if (names.length > 1) {
    const select = make("select", {}, ...names.map((name) => make("option", { value: name }, name)));
    select.addEventListener("change", () => { state.axis = select.value; redraw(); });
    box.append(make("label", { className: "axis" }, make("span", { className: "name" }, "along x"), select));
  }
  const hint = DRAG ? " Drag to zoom, double-click to reset." : "";
  box.append(make("p", { className: "note" }, `Lines are means over seeds, bands their 95 % interval.${hint}`));
  box.hidden = false;
}
