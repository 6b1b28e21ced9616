
"use strict";
(() => {
  // Every figure comes as it is printed: nothing is computed here.
  const models = JSON.parse(document.getElementById("stops").textContent);
  const slider = document.getElementById("coverage");
  if (!slider) return;
  const fields = ["coverage", "threshold", "answered", "left", "wrong", "risk"];

  // Long numbers in groups of three digits, as in the tables.
  const grouped = (number) => {
    const [whole, digits = ""] = number.split(".");
    if (digits.length <= 4) return [number];
    return [`${whole}.`, ...digits.match(/.{1,3}/g).map((group) => {
      const span = document.createElement("span");
      span.className = "digits";
      span.textContent = group;
      return span;
    })];
  };

  const outcomes = document.querySelectorAll(".chosen");
  const marks = document.querySelectorAll(".mark");

  const show = () => {
    const stop = slider.valueAsNumber;
    const told = models.map((model, i) => {
      const at = model.at[stop];
      const figures = Object.fromEntries(fields.map((field, j) => [field, model.figures[at][j]]));
      const chosen = outcomes[i];
      for (const cell of chosen.querySelectorAll("[data-field]")) {
        const text = figures[cell.dataset.field];
        cell.replaceChildren(...(cell.dataset.field === "threshold" ? grouped(text) : [text]));
      }
      const [right, wrong] = model.shares[at];
      chosen.querySelector("rect.right").setAttribute("width", right);
      chosen.querySelector("rect.wrong").setAttribute("x", right);
      chosen.querySelector("rect.wrong").setAttribute("width", wrong);
      const [x, y] = model.marks[at];
      const mark = marks[i];
      mark.querySelector("circle").setAttribute("cx", x);
      mark.querySelector("circle").setAttribute("cy", y);
      mark.querySelector("path").setAttribute("d", `M${x} ${mark.dataset.floor}V${y}`);
      mark.style.visibility = "visible";
      return figures;
    });
    const first = told[0];
    document.getElementById("share").textContent = first.coverage;
    const said = models.length === 1
      ? `It answers ${first.answered} cases; ${first.wrong} of these answers are wrong.`
      : told.map((figures, i) => `${models[i].name}: ${figures.risk} wrong.`).join(" ");
    document.getElementById("said").textContent = said;
    slider.setAttribute("aria-valuetext", `${first.coverage} answered, ${first.risk} of these wrong`);
  };

  for (const hidden of document.querySelectorAll("#abstain [hidden]")) hidden.hidden = false;
  slider.addEventListener("input", show);
  show();
})();
