// The page of `polyrail experiment sweep` and `autotune`, from their JSON.

// With one round no noise is known, so nothing is ranked.
const isRanked = data.cells.some((cell) => cell.measured > 1);
const levelsOf = (cell) => Object.entries(cell.levels).map(([name, value]) => `${name}=${value}`).join(" ");

Object.assign(terms, {
  matters: "how far the highest level of a setting is above its lowest",
  noise: "half of the range of the figures of one cell; a smaller difference between settings says nothing",
});

function settings() {
  if (!data.sensitivity.length) return;
  const row = (one) => one.noise_percent === null ? ["not ranked (one round)", "–", "–", "–"]
    : one.percent > one.noise_percent ? [showPercent(one.percent), showPercent(one.noise_percent), one.highest, one.lowest]
    : ["within noise", showPercent(one.noise_percent), "–", "–"];
  section("Settings", "", table(["setting", "matters", "noise", "highest at", "lowest at"], data.sensitivity.map((one) => [one.factor, ...row(one)])));
}

// A table with tinted cells: rows and columns have levels of their own.
function map(one) {
  const all = one.figures.flat().filter((figure) => figure !== null);
  const shades = shadesOf(all, digits);
  const tinted = (figure) => {
    if (figure === null) return "–";
    const made = element("span", { className: "tinted", textContent: digits(figure) });
    const share = Math.round(shades.share(figure) * 100);
    made.style.background = `color-mix(in oklab, var(--heat-high) ${share}%, var(--heat-low))`;
    made.style.color = share > 55 ? "var(--paper)" : "var(--ink)";
    return made;
  };
  return element("figure", {}, table([`${one.row_factor} by ${one.column_factor}`, ...one.columns], one.rows.map((row, index) => [row, ...one.figures[index].map(tinted)])),
    element("figcaption", { textContent: `${one.row_factor} (down) by ${one.column_factor} (across); ${shades.words}` }));
}

function cells() {
  const most = 24;
  const order = data.cells.filter((cell) => cell.figure);
  if (!order.length) return;
  if (isRanked) order.sort((a, b) => (b.figure.median - a.figure.median) * (data.better === "lower" ? -1 : 1));
  section(order.length > most ? `${isRanked ? "Best " : ""}${most} of ${order.length} cells` : "Cells", isRanked ? "" : "Not ranked: each cell was measured once.", table(["levels", data.unit ? `median ${data.unit}` : "median", "least", "most", "measured"], order.slice(0, most).map((cell) =>
    [levelsOf(cell), digits(cell.figure.median), digits(cell.figure.min), digits(cell.figure.max), `${cell.measured} ×`])));
}

settings();
if (data.heat_maps.length) section("Two settings together", `The darker, the larger. Each figure${data.unit ? `, in ${data.unit},` : ""} is the mean over all levels of the other settings.`, element("div", { className: "pair" }, ...data.heat_maps.slice(0, 12).map(map)));
cells();
notes(data.notes);
