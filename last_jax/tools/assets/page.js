// Every block of the page, drawn when it comes near the viewport.

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
    controls(section, charts, redraw, state);
  }
  for (const { content, element } of own) {
    if (content.kind === "labels") {
      const frame = { frame: 0 };
      const block = { element, draw: () => drawLabels(element, content, frame) };
      labelControls(element, content, frame, () => { if (block.wanted) draw(block); });
      drawings.push(block);
    } else if (content.kind === "images") {
      const decoded = [...element.querySelectorAll("img")].map((image) => image.decode());
      Promise.all(decoded).then(() => { element.dataset.drawn = "true"; }, () => {});
    }
  }
  blocks.push(...drawings);
}
document.querySelectorAll("button.copy").forEach(copyButton);
contents();
if (data.opening) demonstration(data.opening);

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
