"use strict";
// What all pages share: their data, and small drawing functions. These set all text as text, so text in the data
// never becomes markup.

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("report");

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 560, HEIGHT = 350, LEFT = 68, RIGHT = 18, TOP = 14, BOTTOM = 44;

function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  Object.assign(made, properties);
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function shape(name, attributes = {}, text) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function digits(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size === 0) return "0";
  if (size >= 1e5 || size < 1e-3) return value.toExponential(size < 1e-3 ? 0 : 2);
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toFixed(3);
}

function showBytes(bytes) {
  for (const [scale, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= scale) return `${bytes % scale ? digits(bytes / scale) : bytes / scale} ${unit}`;
  }
  return `${bytes} B`;
}

function showTime(ns) {
  if (ns === null || ns === undefined) return "–";
  for (const [scale, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (Math.abs(ns) >= scale) return `${digits(ns / scale)} ${unit}`;
  }
  return `${digits(ns)} ns`;
}

function showPercent(value) {
  return value === null || value === undefined ? "–" : `${digits(value)} %`;
}

function signed(value) {
  return `${value > 0 ? "+" : ""}${digits(value)} %`;
}

// Those within three interquartile ranges of the quartiles, unless nearly all are equal.
function inside(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const quartile = (share) => sorted[Math.round((sorted.length - 1) * share)];
  const [low, high] = [quartile(0.25), quartile(0.75)];
  return high > low ? values.filter((value) => value >= low - 3 * (high - low) && value <= high + 3 * (high - low)) : values;
}

// An axis: maps data to pixels, and places its marks. Nothing lies below `least`; a fenced axis puts what is far from
// the rest at its edge.
function axis(values, { log = false, zero = false, least = -Infinity, fenced = false, show = digits, base = 10 }, from, to) {
  let finite = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (fenced) finite = inside(finite);
  if (!finite.length) finite = [log ? 1 : 0, 1];
  let low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  if (zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - 1, high + 1];
  const marks = [];
  if (log) {
    const power = Math.log(base);
    const first = Math.floor(Math.log(low) / power + 1e-9), last = Math.ceil(Math.log(high) / power - 1e-9);
    const every = Math.ceil((last - first) / 8) || 1;
    for (let at = first; at <= last; at += every) marks.push(base ** at);
    [low, high] = [base ** first, base ** last];
  } else {
    const rough = (high - low) / 6, scale = 10 ** Math.floor(Math.log10(rough));
    const step = scale * [1, 2, 5, 10].find((one) => one * scale >= rough);
    low = Math.max(Math.floor(low / step) * step, least);
    high = Math.ceil(high / step) * step;
    for (let at = Math.ceil(low / step) * step; at <= high + step / 2; at += step) marks.push(Math.abs(at) < step / 1e6 ? 0 : at);
  }
  const place = log ? Math.log : (value) => value;
  const kept = (value) => fenced ? Math.min(Math.max(value, low), high) : value;
  const at = (value) => from + (place(kept(value)) - place(low)) / (place(high) - place(low)) * (to - from);
  return { at, marks, show };
}

function frame(title, x, y, xLabel, yLabel) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": title });
  for (const mark of x.marks) {
    svg.append(shape("line", { class: "grid", x1: x.at(mark), x2: x.at(mark), y1: TOP, y2: HEIGHT - BOTTOM }));
    svg.append(shape("text", { x: x.at(mark), y: HEIGHT - BOTTOM + 16, "text-anchor": "middle" }, x.show(mark)));
  }
  for (const mark of y.marks) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y.at(mark), y2: y.at(mark) }));
    svg.append(shape("text", { x: LEFT - 6, y: y.at(mark) + 4, "text-anchor": "end" }, y.show(mark)));
  }
  svg.append(shape("text", { x: (LEFT + WIDTH) / 2, y: HEIGHT - 8, "text-anchor": "middle" }, xLabel));
  svg.append(shape("text", { x: -(TOP + HEIGHT - BOTTOM) / 2, y: 13, transform: "rotate(-90)", "text-anchor": "middle" }, yLabel));
  return svg;
}

// Lines or dots. A series has name, color, points [x, y, what else to say], and perhaps dots, dash.
function chart(title, series, xOptions, yOptions) {
  const good = (point, options, place) => Number.isFinite(point[place]) && (!options.log || point[place] > 0);
  const kept = series.map((one) => ({
    ...one, points: one.points.filter((point) => good(point, xOptions, 0) && good(point, yOptions, 1)),
  })).filter((one) => one.points.length);
  const all = kept.flatMap((one) => one.points);
  const x = axis(all.map((point) => point[0]), xOptions, LEFT, WIDTH - RIGHT);
  const y = axis(all.map((point) => point[1]), yOptions, HEIGHT - BOTTOM, TOP);
  const svg = frame(title, x, y, xOptions.label, yOptions.label);
  const places = [];
  for (const one of kept) {
    const group = shape("g", { class: "series" });
    const pixels = one.points.map((point) => [x.at(point[0]), y.at(point[1])]);
    if (!one.dots) {
      const path = pixels.map(([px, py], index) => `${index ? "L" : "M"}${px.toFixed(1)},${py.toFixed(1)}`).join("");
      group.append(shape("path", { class: "curve", d: path, style: `stroke:${one.color}`, "stroke-dasharray": one.dash ?? "none" }));
    }
    if (one.dots || pixels.length < 3) {
      for (const [px, py] of pixels) group.append(shape("circle", { cx: px.toFixed(1), cy: py.toFixed(1), r: 2.4, style: `fill:${one.color}`, "fill-opacity": 0.7 }));
    }
    svg.append(group);
    pixels.forEach(([px, py], index) => places.push({ px, py, one, group, point: one.points[index] }));
  }
  const ring = shape("circle", { r: 5, fill: "none", stroke: "currentColor", "stroke-width": 2, visibility: "hidden" });
  svg.append(ring);
  const leave = () => {
    hideHover();
    ring.setAttribute("visibility", "hidden");
    svg.querySelectorAll(".dim,.lit").forEach((path) => path.classList.remove("dim", "lit"));
  };
  svg.addEventListener("pointerleave", leave);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const mx = (event.clientX - box.left) / box.width * WIDTH, my = (event.clientY - box.top) / box.height * HEIGHT;
    let best = null, least = 40 ** 2;
    for (const place of places) {
      const far = (place.px - mx) ** 2 + (place.py - my) ** 2;
      if (far < least) [best, least] = [place, far];
    }
    leave();
    if (!best) return;
    ring.setAttribute("cx", best.px);
    ring.setAttribute("cy", best.py);
    ring.setAttribute("visibility", "visible");
    if (kept.length > 1 && !best.one.dots) {
      svg.querySelectorAll(".curve").forEach((path) => path.classList.add(path.parentNode === best.group ? "lit" : "dim"));
    }
    const says = best.point[2] ?? `${xOptions.show ? xOptions.show(best.point[0]) : digits(best.point[0])}: ${yOptions.show ? yOptions.show(best.point[1]) : digits(best.point[1])}`;
    showHover(event, `${best.one.name}\n${says}`);
  });
  return svg;
}

function showHover(event, text) {
  const hover = document.getElementById("hover");
  hover.textContent = text;
  hover.hidden = false;
  const { width, height } = hover.getBoundingClientRect();
  hover.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  hover.style.top = `${Math.min(event.clientY + 14, innerHeight - height - 8)}px`;
}

function hideHover() {
  document.getElementById("hover").hidden = true;
}

// Rows of cells, each with a value from 0 to 1 for its shade.
function heatMap(title, names, cell) {
  const side = Math.min(84, 640 / names.length), left = 120, top = 34;
  const width = left + side * names.length + 10, height = top + side * names.length + 10;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, style: `max-width: ${width}px` });
  names.forEach((name, row) => {
    svg.append(shape("text", { x: left - 8, y: top + side * (row + 0.5) + 4, "text-anchor": "end" }, `from ${name}`));
    svg.append(shape("text", { x: left + side * (row + 0.5), y: top - 10, "text-anchor": "middle" }, `to ${name}`));
    names.forEach((_, column) => {
      const found = cell(row, column);
      const at = { x: left + side * column + 1, y: top + side * row + 1, width: side - 2, height: side - 2, rx: 4 };
      if (!found) {
        svg.append(shape("rect", { ...at, fill: "none", stroke: "var(--line)" }));
        return;
      }
      const share = Math.round(found.share * 100);
      const rect = shape("rect", { ...at, class: "cell", style: `fill:color-mix(in oklab, var(--heat-high) ${share}%, var(--heat-low))` });
      rect.addEventListener("pointermove", (event) => showHover(event, found.says));
      rect.addEventListener("pointerleave", hideHover);
      svg.append(rect);
      if (side > 36) {
        const text = shape("text", { x: at.x + side / 2 - 1, y: at.y + side / 2 + 3, "text-anchor": "middle", "pointer-events": "none", style: `fill:${share > 55 ? "var(--paper)" : "var(--ink)"}` }, found.text);
        svg.append(text);
      }
    });
  });
  return svg;
}

// One row per item, one block per range of sizes.
function ranges(title, rows, sizes) {
  const step = 18, top = 8, left = 170, width = 1080;
  const height = top + rows.length * step + 30;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title, class: "wide" });
  const x = (index) => left + (width - RIGHT - left) * index / sizes.length;
  rows.forEach((row, line) => {
    const y = top + line * step;
    svg.append(shape("text", { x: left - 8, y: y + 12, "text-anchor": "end" }, row.name));
    for (const block of row.blocks) {
      const first = sizes.indexOf(block.from), last = sizes.indexOf(block.to) + 1;
      const rect = shape("rect", { class: "cell", x: x(first) + 0.5, y: y + 1, width: x(last) - x(first) - 1, height: step - 3, rx: 2, style: `fill:${block.color}` });
      rect.addEventListener("pointermove", (event) => showHover(event, `${row.name}\n${block.says}`));
      rect.addEventListener("pointerleave", hideHover);
      svg.append(rect);
    }
    for (const cut of row.cuts) {
      const at = x(sizes.indexOf(cut));
      svg.append(shape("line", { x1: at, x2: at, y1: y, y2: y + step - 1, style: "stroke:var(--ink)", "stroke-width": 2.5 }));
    }
  });
  sizes.forEach((size, index) => {
    if (index % Math.ceil(sizes.length / 8) === 0) {
      svg.append(shape("text", { x: x(index), y: height - 10 }, showBytes(size)));
    }
  });
  return svg;
}

function table(headings, rows, words = false) {
  const head = element("tr", {}, ...headings.map((heading) => element("th", { textContent: heading })));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell) =>
    cell instanceof Node ? element("td", {}, cell) : element("td", { textContent: cell }))));
  const made = element("table", { className: words ? "words" : "" }, element("thead", {}, head), element("tbody", {}, ...body));
  return element("div", { className: "scroll" }, made);
}

function legend(entries) {
  return element("div", { className: "legend" }, ...entries.map(([name, color]) => {
    const box = element("i");
    box.style.background = color;
    return element("span", {}, box, name);
  }));
}

function section(title, text, ...children) {
  main.append(element("h2", { textContent: title }));
  if (text) main.append(element("p", { className: "soft", textContent: text }));
  main.append(...children);
}

function figure(drawn, caption) {
  return element("figure", {}, drawn, caption ? element("figcaption", { textContent: caption }) : null);
}

// A drawing that redraws itself when one of its choices changes.
function chosen(choices, draw) {
  const box = element("div");
  const selects = choices.map(([label, options]) => {
    const select = element("select", {}, ...options.map(([value, name]) => element("option", { value, textContent: name })));
    const start = options.find((option) => option[2]);
    if (start) select.value = start[0];
    return [label, select];
  });
  const redraw = () => box.replaceChildren(draw(...selects.map(([, select]) => select.value)));
  selects.forEach(([, select]) => select.addEventListener("change", redraw));
  redraw();
  const shown = selects.filter(([, select]) => select.options.length > 1);
  return element("div", {}, element("p", {}, ...shown.map(([label, select]) => element("label", {}, `${label} `, select))), box);
}
