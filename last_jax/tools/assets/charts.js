// Curves of methods, with bands and levels.

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
    // At or below 0 there is no place on a log axis: Plotly would draw a level line up to the next record.
    const seen = (values, isLog) => (isLog ? values.map((value) => (value > 0 ? value : null)) : values);
    traces.lines.push({
      ...common, x: seen(x, xLog), y: x.length ? seen(line.mean, log) : [], text, meta: meta("mean"),
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
    xaxis: axis(colors, { title: title(escaped(along)) }, xLog, xRange, size.width < 300 ? 5 : MOST_TICKS.x),
    yaxis: axis(colors, { title: title(wrapped(chart.label, 40)) }, log, y.range, MOST_TICKS.y),
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
  const drawn = Plotly.react(plot, [...traces.bands, ...traces.lines, ...traces.markers], layout, CONFIG);
  return drawn.then(() => finishPlot(plot));
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
