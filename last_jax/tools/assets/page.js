"use strict";

(() => {
  const data = JSON.parse(document.getElementById("page-data").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const MARKERS = 7; // Per curve: enough to follow it in grey, few enough to see the line.
  const NEAR = 30; // The factor by which a level may lie beyond the curves on a log axis and still be shown.
  // On touch screens a drag scrolls the page, and there would be no way out of a zoom.
  const DRAG = matchMedia("(pointer: coarse)").matches ? false : "zoom";
  const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
  const blocks = []; // {element, draw(), drawn}

  // Texts. ----------------------------------------------------------------------------------------------------------

  /** Text for Plotly, which interprets some tags. */
  const escaped = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  const written = (number) => (number === null ? "?" : String(Number(number.toPrecision(4))).replace("-", "−"));

  /** Escaped text in lines of about `letters` letters. */
  function wrapped(text, letters) {
    const lines = [""];
    for (const word of text.split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length >= letters) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    return lines.map(escaped).join("<br>");
  }

  function make(tag, settings = {}, ...children) {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(settings)) {
      if (name in element) element[name] = value;
      else element.setAttribute(name, value);
    }
    element.append(...children);
    return element;
  }

  // Colours. --------------------------------------------------------------------------------------------------------

  function theme() {
    const style = getComputedStyle(document.documentElement);
    const names = ["paper", "text", "muted", "grid", "edge", "zero", "one", "current", "optimal"];
    return Object.fromEntries(names.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const gamma = (part) => (part <= 0.0031308 ? 12.92 * part : 1.055 * part ** (1 / 2.4) - 0.055);
  const channels = (color) => [1, 3, 5].map((place) => parseInt(color.slice(place, place + 2), 16) / 255);

  function toOklab(color) {
    const [r, g, b] = channels(color).map(linear);
    const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
    const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
    const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
    return [
      0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
      1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
      0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
    ];
  }

  function fromOklab([light, a, b]) {
    const l = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
    const m = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
    const s = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
    return [
      4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
      -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
      -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
    ].map(gamma);
  }

  /**
   * A method's colour on the current background. On a dark one lightness is inverted: black, which stands out most on
   * white, becomes the lightest, and shades of one hue stay apart. All have a contrast of 3 or more.
   */
  function shown(color) {
    if (!dark.matches) return color;
    const [light, a, b] = toOklab(color);
    const turned = 0.98 - 0.46 * light;
    for (let chroma = 1; ; chroma -= 0.05) { // The largest chroma that the screen can show at that lightness.
      const parts = fromOklab([turned, a * chroma, b * chroma]);
      if (chroma <= 0 || parts.every((part) => part >= -0.001 && part <= 1.001)) return hexOf(parts);
    }
  }

  const hexOf = (parts) =>
    "#" + parts.map((part) => Math.round(255 * Math.min(1, Math.max(0, part))).toString(16).padStart(2, "0")).join("");

  const translucent = (color, share) => `rgba(${channels(color).map((part) => Math.round(255 * part))}, ${share})`;

  // Swatches: a piece of a method's line, as in the charts. ----------------------------------------------------------

  function corners(count, turn, radii = [1]) {
    return Array.from({ length: count * radii.length }, (_, place) => {
      const angle = ((turn + (360 / (count * radii.length)) * place) * Math.PI) / 180;
      const radius = radii[place % radii.length];
      return `${(radius * Math.sin(angle)).toFixed(3)},${(-radius * Math.cos(angle)).toFixed(3)}`;
    }).join(" ");
  }

  const PLUS = "-.35,-1 .35,-1 .35,-.35 1,-.35 1,.35 .35,.35 .35,1 -.35,1 -.35,.35 -1,.35 -1,-.35 -.35,-.35";
  const SHAPES = {
    "circle": corners(24, 0), "square": corners(4, 45, [1.15]), "diamond": corners(4, 0, [1.15]),
    "diamond-tall": "0,-1.2 .65,0 0,1.2 -.65,0", "triangle-up": corners(3, 0, [1.15]),
    "triangle-down": corners(3, 180, [1.15]), "triangle-left": corners(3, 270, [1.15]),
    "triangle-right": corners(3, 90, [1.15]), "cross": PLUS, "x": PLUS, "star": corners(5, 0, [1.3, 0.55]),
    "pentagon": corners(5, 0, [1.1]), "hexagon": corners(6, 30, [1.1]),
  };

  /** An SVG of a line with a marker in its middle; either is optional. */
  function swatch({ color, dash, symbol, fill, outline }) {
    const part = (name, settings) => {
      const element = document.createElementNS("http://www.w3.org/2000/svg", name);
      for (const [key, value] of Object.entries(settings)) element.setAttribute(key, value);
      return element;
    };
    const width = dash ? 44 : 16;
    const svg = part("svg", { width, height: 16, viewBox: `0 0 ${width} 16`, "aria-hidden": "true" });
    if (dash) {
      const dashes = dash === "solid" ? "none" : dash.replaceAll("px", "");
      svg.append(part("path", {
        "d": `M0 8H${width}`, "stroke": color, "stroke-width": data.width, "stroke-dasharray": dashes, "fill": "none",
      }));
    }
    if (symbol) {
      const turn = symbol === "x" ? " rotate(45)" : "";
      svg.append(part("polygon", {
        "points": SHAPES[symbol], "transform": `translate(${width / 2} 8) scale(4.4)${turn}`, "fill": fill,
        "stroke": outline ?? color, "stroke-width": outline ? 2 : 1.4, "vector-effect": "non-scaling-stroke",
      }));
    }
    return svg;
  }

  // Charts. ---------------------------------------------------------------------------------------------------------

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

  const title = (text) => ({ text, standoff: 8, font: { size: 13 } });

  function axis(colors, settings, log, range) {
    const decades = range ? range[1] - range[0] : 0;
    return {
      type: log ? "log" : "linear", range: range ?? undefined, autorange: !range, automargin: true, zeroline: false,
      gridcolor: colors.grid, linecolor: colors.edge, showline: true, ticks: "outside", ticklen: 4,
      tickcolor: colors.edge, exponentformat: "power", nticks: 7, minexponent: 4,
      // Plotly writes powers larger than other numbers.
      ...(log && decades > 2 ? { dtick: Math.ceil(decades / 7), tickfont: { size: 10 } } : { tickfont: { size: 12 } }),
      ...settings,
    };
  }

  function baseLayout(colors) {
    return {
      paper_bgcolor: colors.paper, plot_bgcolor: colors.paper, showlegend: false, hovermode: "closest",
      dragmode: DRAG, font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colors.text },
      margin: { l: 50, r: 14, t: 12, b: 44 }, hoverlabel: { align: "left", namelength: -1 },
    };
  }

  function drawChart(element, chart, state) {
    const colors = theme();
    const log = state.y === "own" ? chart.log : state.y === "log";
    const xLog = state.x === "own" ? chart.x_log : state.x === "log";
    const names = [...new Set(chart.lines.flatMap((line) => Object.keys(line.axes)))];
    const along = names.includes(state.axis) ? state.axis : names[0];
    const lacking = chart.lines.filter((line) => !(along in line.axes));
    const there = chart.lines.filter((line) => along in line.axes);
    const visible = there.filter((line) => !state.hidden.has(line.name));
    const counted = visible.length ? visible : there;
    const y = heights(chart, counted, log);
    const xEnds = extent(counted.flatMap((line) => line.axes[along]), xLog);
    const xRange = xEnds && roomy(xEnds, xLog, 0.015);

    const traces = { bands: [], lines: [], markers: [] };
    chart.lines.forEach((line, place) => {
      const x = line.axes[along] ?? [];
      const [low, high] = log ? [line.log_low, line.log_high] : [line.low, line.high];
      const color = shown(line.color);
      const common = { type: "scatter", name: escaped(line.name), visible: !state.hidden.has(line.name) };
      const meta = (part) => ({ method: line.name, part });
      const spots = xRange ? markerPlaces(x, line.mean, xRange, xLog, place / chart.lines.length) : [];
      const text = x.map((value, at) => {
        const between = low[at] === null ? "" : `<br>95 %: ${written(low[at])} to ${written(high[at])}`;
        const where = `<b>${escaped(line.name)}</b><br>${escaped(along)}: ${written(value)}`;
        return `${where}<br>mean: ${written(line.mean[at])}${between}`;
      });
      traces.bands.push({
        ...common, ...band(x, low, high, xLog), meta: meta("band"), mode: "lines", line: { width: 0 }, fill: "toself",
        fillcolor: translucent(color, dark.matches ? 0.22 : 0.16), hoverinfo: "skip",
      });
      traces.lines.push({
        ...common, x, y: x.length ? line.mean : [], text, meta: meta("mean"),
        mode: x.length === 1 ? "markers" : "lines",
        line: { color, width: data.width, dash: line.dash }, hovertemplate: "%{text}<extra></extra>",
        marker: { color, symbol: line.symbol, size: 8 },
      });
      traces.markers.push({
        ...common, x: spots.map((at) => x[at]), y: spots.map((at) => line.mean[at]), meta: meta("markers"),
        mode: "markers", hoverinfo: "skip",
        marker: { symbol: line.symbol, size: 8, color: colors.paper, line: { color, width: 1.5 } },
      });
    });

    const plot = element.querySelector(".plot");
    const size = { width: Math.max(150, plot.clientWidth - 75), height: Math.max(150, plot.clientHeight - 65) };
    const share = (value, [from, to], isLog) => ((isLog ? Math.log10(value) : value) - from) / (to - from);
    const curves = !xRange || !y.range ? [] : visible.map((line) => line.mean
      .map((mean, at) => [line.axes[along][at], mean])
      .filter(([at, mean]) => at !== null && mean !== null && !(xLog && at <= 0) && !(log && mean <= 0))
      .map(([at, mean]) => [share(at, xRange, xLog), share(mean, y.range, log)]));
    const layout = {
      ...baseLayout(colors),
      xaxis: axis(colors, { title: title(escaped(along)) }, xLog, xRange),
      yaxis: axis(colors, { title: title(wrapped(chart.label, 40)) }, log, y.range),
      shapes: y.levels.map(([, level, floor]) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, yref: "y", y0: level, y1: level, layer: "below",
        line: { color: colors.muted, width: 1.2, dash: floor ? "2px,3px" : "solid" },
      })),
      annotations: levelNames(y, log, colors, curves, size),
    };
    const note = [];
    const far = chart.levels.filter(([name]) => !y.levels.some(([other]) => other === name));
    if (far.length) note.push(`Out of view: ${far.map(([name, level]) => `${name} (${written(level)})`).join(", ")}.`);
    if (lacking.length) note.push(`Not by ${along}: ${lacking.map((line) => line.name).join(", ")}.`);
    if (there.length && (!y.range || !xRange)) note.push("No curve has values on this axis.");
    element.querySelector(".note").textContent = note.join(" ");
    return Plotly.react(plot, [...traces.bands, ...traces.lines, ...traces.markers], layout, CONFIG);
  }

  /** The names of levels, each where the fewest curves pass. Levels close to each other share a text. */
  function levelNames({ range, levels }, log, colors, curves, size) {
    const length = range ? range[1] - range[0] : 1;
    const groups = [];
    for (const [name, level] of [...levels].sort((one, other) => one[1] - other[1])) {
      const height = ((log ? Math.log10(level) : level) - range[0]) / length;
      const last = groups[groups.length - 1];
      if (last && height - last.top < 20 / size.height) {
        last.names.push(name);
        last.top = height;
      } else groups.push({ names: [name], bottom: height, top: height });
    }
    return groups.map(({ names, bottom, top }) => {
      const text = names.join(", ");
      const [wide, high] = [(7 * text.length + 8) / size.width, 18 / size.height];
      let best = null;
      for (const gap of [0, 12]) { // With a gap where curves run along the level.
        for (const above of [true, false]) {
          for (const left of [0.01, 0.5 - wide / 2, 0.99 - wide]) {
            const from = above ? top + gap / size.height : bottom - high - gap / size.height;
            if (from < 0 || from + high > 1) continue;
            const box = [left, left + wide, from, from + high];
            const passing = curves.reduce((sum, curve) => sum + crossings(curve, box), 0);
            if (!best || passing < best.passing) best = { gap, above, left, passing };
          }
        }
      }
      const { gap, above, left } = best ?? { gap: 0, above: true, left: 0.01 };
      return {
        text: escaped(text), xref: "paper", x: left, xanchor: "left", yref: "paper", y: above ? top : bottom,
        yanchor: above ? "bottom" : "top", yshift: above ? gap : -gap, showarrow: false, borderpad: 1,
        font: { size: 12, color: colors.muted }, bgcolor: translucent(colors.paper, 0.7),
      };
    });
  }

  /** The number of segments of the curve, given in shares of the chart, that enter the box. */
  function crossings(curve, [left, right, bottom, top]) {
    let count = 0;
    for (let at = 1; at < curve.length; at++) {
      const [[x0, y0], [x1, y1]] = [curve[at - 1], curve[at]];
      const across = Math.max(x0, x1) >= left && Math.min(x0, x1) <= right;
      if (across && Math.max(y0, y1) >= bottom && Math.min(y0, y1) <= top) count++;
    }
    return count;
  }

  /** A table of the last value of every curve: for screen readers, and for exact numbers. */
  function values(chart) {
    const row = (tag, scope, [first, ...rest]) => {
      const cells = rest.map((text) => make(tag, tag === "th" ? { scope } : {}, text));
      return make("tr", {}, make("th", { scope }, first), ...cells);
    };
    const rows = chart.lines.map(({ name, mean, low, high }) => {
      const at = mean.length - 1;
      const ends = at < 0 || low[at] === null ? "" : `${written(low[at])} to ${written(high[at])}`;
      return row("td", "row", [name, at < 0 || mean[at] === null ? "not finite" : written(mean[at]), ends]);
    });
    const head = make("thead", {}, row("th", "col", ["Method", "Mean", "95 % interval"]));
    return make("details", {}, make("summary", {}, "Values at the end"),
      make("table", { className: "values" }, head, make("tbody", {}, ...rows)));
  }

  // Controls of a section. ------------------------------------------------------------------------------------------

  function controls(section, charts, redraw, state) {
    const box = section.querySelector(".controls");
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
          state.hidden = new Set(checked ? [] : lines.keys());
          redraw();
        });
        methods.append(button);
      }
    }
    box.append(methods);
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

  // Labels of points. -----------------------------------------------------------------------------------------------

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
    return Plotly.react(element.querySelector(".plot"), traces, layout, CONFIG);
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

  // The page. -------------------------------------------------------------------------------------------------------

  function draw(block) {
    block.wanted = true;
    return block.draw().then(() => { block.element.dataset.drawn = "true"; });
  }

  function copyButton(button) {
    const code = button.parentElement.querySelector("code");
    button.setAttribute("aria-live", "polite");
    button.addEventListener("click", async () => {
      let done = true;
      try {
        await navigator.clipboard.writeText(code.textContent);
      } catch { // Pages from disk may have no clipboard API; the older one needs a selection.
        getSelection().selectAllChildren(code);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Selected";
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }

  for (const [anchor, contents] of Object.entries(data.sections)) {
    const section = document.getElementById(anchor);
    const state = { hidden: new Set(), y: "own", x: "own", axis: "" };
    const own = contents.map((content, place) => ({ content, element: document.getElementById(`${anchor}-${place}`) }));
    const charts = own.filter(({ content }) => content.kind === "chart");
    const drawings = charts.map(({ content, element }) => (
      { element, draw: () => drawChart(element, content, state) }
    ));
    if (charts.length) {
      const redraw = () => drawings.filter((block) => block.wanted).forEach(draw);
      charts.forEach(({ content, element }) => element.append(values(content)));
      controls(section, charts.map(({ content }) => content), redraw, state);
    }
    for (const { content, element } of own) {
      if (content.kind === "labels") {
        const frame = { frame: 0 };
        const block = { element, draw: () => drawLabels(element, content, frame) };
        labelControls(element, content, frame, () => { if (block.wanted) draw(block); });
        drawings.push(block);
      } else if (content.kind === "picture") {
        const image = element.querySelector("img");
        image.decode().then(() => { element.dataset.drawn = "true"; }, () => {});
      }
    }
    blocks.push(...drawings);
  }
  document.querySelectorAll("button.copy").forEach(copyButton);

  // Charts are drawn when they come near the viewport, so that a page of many figures opens fast.
  const byElement = new Map(blocks.map((block) => [block.element, block]));
  const observer = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      observer.unobserve(entry.target);
      draw(byElement.get(entry.target));
    }
  }, { rootMargin: "600px 0px" });
  blocks.forEach((block) => observer.observe(block.element));
  addEventListener("beforeprint", () => blocks.filter((block) => !block.wanted).forEach(draw));
  dark.addEventListener("change", () => blocks.filter((block) => block.wanted).forEach(draw));
})();
