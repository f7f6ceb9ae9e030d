// The contents, and the filter of figures and claims.

function contents() {
  const form = document.querySelector(".contents form");
  const choices = [...form.querySelectorAll(".choice")];
  const status = form.querySelector("[role=status]");
  const rows = [...document.querySelectorAll(".claims tbody tr")].map((element) => (
    { element, verdict: element.dataset.verdict, figure: element.dataset.figure, text: element.textContent.toLowerCase() }
  ));
  const figures = [...document.querySelectorAll("section.figure")].map((element) => ({
    element, entry: document.querySelector(`.contents li[data-figure="${CSS.escape(element.id)}"]`),
    text: element.querySelector("h2").textContent.toLowerCase() + element.id,
  }));

  const apply = () => {
    const verdicts = choices.filter((choice) => choice.getAttribute("aria-pressed") === "true")
      .map((choice) => choice.dataset.verdict);
    const figure = form.elements.figure.value;
    const words = form.elements.words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const has = (text) => words.every((word) => text.includes(word));
    const named = new Set(figures.filter((each) => has(each.text)).map((each) => each.element.id));
    for (const row of rows) {
      const fits = (!verdicts.length || verdicts.includes(row.verdict)) && (!figure || row.figure === figure);
      row.element.hidden = !(fits && (has(row.text) || named.has(row.figure)));
    }
    for (const { element, entry } of figures) {
      const own = rows.filter((row) => row.figure === element.id);
      const claimed = own.some((row) => !row.element.hidden);
      const fits = (!figure || element.id === figure) && (claimed || (!verdicts.length && named.has(element.id)));
      element.hidden = entry.hidden = !fits;
    }
    const count = (all, name) => `${all.filter(({ element }) => !element.hidden).length} of ${all.length} ${name}`;
    status.textContent = [count(figures, "figures"), ...(rows.length ? [count(rows, "claims")] : [])].join(", ");
  };
  for (const choice of choices) {
    choice.addEventListener("click", () => {
      choice.setAttribute("aria-pressed", String(choice.getAttribute("aria-pressed") !== "true"));
      apply();
    });
  }
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", apply);
  form.addEventListener("reset", () => {
    choices.forEach((choice) => choice.setAttribute("aria-pressed", "false"));
    setTimeout(apply); // After the fields are empty.
  });
  // A link to what the filter hides shows everything again.
  document.addEventListener("click", (event) => {
    const link = event.target.closest?.("a[href^='#']");
    const target = link && document.getElementById(decodeURIComponent(link.hash.slice(1)));
    if (!target?.hidden) return;
    choices.forEach((choice) => choice.setAttribute("aria-pressed", "false"));
    form.elements.figure.value = form.elements.words.value = "";
    apply();
  });
  apply();
}
