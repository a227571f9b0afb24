// The page of an experiment, from its `report.json`.

const TONES = { better: ["good", "var(--good)"], worse: ["bad", "var(--bad)"], no_effect: ["", "var(--soft)"], undecided: ["unclear", "var(--unclear)"] };
const levelOf = (effect) => `${effect.factor}=${effect.level}`;
const isKnown = (value) => value !== null && value !== undefined;
// With four digits that count.
const figureOf = (value) => value.toFixed(Math.min(9, Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value) || 1)))));

Object.assign(terms, {
  effect: "the change of the figure against the baseline, with its interval; an effect is found if the interval doesn't hold zero",
  verdict: "undecided means that the interval holds zero and is wider than was asked for",
});

// Each effect as a dot with its interval as a line, around zero. One without an interval is a hollow dot.
function effects() {
  const drawn = data.effects.filter((effect) => isKnown(effect.percent));
  if (!drawn.length) return null;
  const values = drawn.flatMap((effect) => [effect.percent, effect.low_percent, effect.high_percent]).filter(isKnown);
  return figure(drawing((width) => {
    const row = 28, top = 10, bottom = 44, right = 24;
    const left = Math.min(20 + Math.max(...drawn.map((effect) => widthOf(levelOf(effect)))), width * 0.4);
    const height = top + row * drawn.length + bottom;
    const x = axis(values, { zero: true, show: (value) => `${value > 0 ? "+" : ""}${digits(value)} %` }, left + 8, width - right, Math.min(6, Math.max(2, Math.floor((width - left) / 80))));
    const svg = canvas("effects with their intervals", width, height);
    for (const mark of x.marks) {
      svg.append(shape("line", { class: "grid", x1: x.at(mark), x2: x.at(mark), y1: top, y2: height - bottom, "stroke-width": mark === 0 ? 2 : 1 }));
      svg.append(shape("text", { x: x.at(mark), y: height - bottom + 18, "text-anchor": "middle" }, x.show(mark)));
    }
    svg.append(shape("text", { x: (left + width) / 2, y: height - 8, "text-anchor": "middle" }, "change against the baseline"));
    drawn.forEach((effect, index) => {
      const y = top + row * (index + 0.5), color = TONES[effect.verdict][1];
      svg.append(shape("text", { class: "strong", x: 10, y: y + 4 }, fitted(levelOf(effect), left - 14)));
      const hasInterval = isKnown(effect.low_percent) && isKnown(effect.high_percent);
      if (hasInterval) svg.append(shape("line", { x1: x.at(effect.low_percent), x2: x.at(effect.high_percent), y1: y, y2: y, style: `stroke:${color};stroke-width:4` }));
      const dot = shape("circle", { cx: x.at(effect.percent), cy: y, r: 5, style: `fill:${hasInterval ? color : "var(--card)"};stroke:${color};stroke-width:2` });
      dot.addEventListener("pointermove", (event) => showHover(event, `${levelOf(effect)} against ${effect.baseline}\n${effect.words}`));
      dot.addEventListener("pointerleave", hideHover);
      svg.append(dot);
    });
    return svg;
  }), "A dot is an effect, a line its interval; a hollow dot has no interval yet");
}

// The words are the figures and then the verdict.
function verdictOf(effect) {
  const place = effect.words.search(/better|worse|undecided|no effect/);
  const [figures, verdict] = place > 0 ? [effect.words.slice(0, place).replace(/, $/, ""), effect.words.slice(place)] : [effect.words, effect.verdict.replace("_", " ")];
  return [figures, element("span", { className: TONES[effect.verdict][0], textContent: verdict })];
}

section("Effects", "", effects());
main.append(table(["level", "against", "effect", "verdict"], data.effects.map((effect) => [levelOf(effect), effect.baseline, ...verdictOf(effect)])));
section("Cells", "", table(["cell", data.unit ? `median ${data.unit}` : "median", "least", "most"], data.cells.map((cell) =>
  [cell.label, ...(cell.figure ? [cell.figure.median, cell.figure.min, cell.figure.max].map(figureOf) : ["–", "–", "–"])])));
notes(data.notes);
