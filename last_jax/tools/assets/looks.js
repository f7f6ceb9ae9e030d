// Data, texts, colours, and swatches of methods; the scripts are one function, in the order of page.py.

const data = JSON.parse(document.getElementById("page-data").textContent);
const dark = matchMedia("(prefers-color-scheme: dark)");
const MARKERS = 7; // Per curve: enough to follow it in grey, few enough to see the line.
const NEAR = 30; // The factor by which a level may lie beyond the curves on a log axis and still be shown.
// On touch screens a drag scrolls the page, and there would be no way out of a zoom.
const DRAG = matchMedia("(pointer: coarse)").matches ? false : "zoom";
const CONFIG = { displayModeBar: false, responsive: true, doubleClick: "reset" };
const blocks = []; // {element, draw(), drawn}

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
