"use strict";
// What all pages share: their data, and small drawing functions. These set all text as text, so text in the data
// never becomes markup.

const data = JSON.parse(document.getElementById("data").textContent);
const main = document.getElementById("report");
main.replaceChildren();

const COLORS = ["var(--c0)", "var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)", "var(--c7)"];
const colorOf = (index) => COLORS[index % COLORS.length];
const SVG = "http://www.w3.org/2000/svg";
const TOP = 30, BOTTOM = 44;
// From more lines on colours stand for groups, and only the best, the middle and the worst line have a label.
const LABELLED = 8;
const LINE = 13;
// A table with more cells is folded on a narrow window.
const LONG = 48;

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
  if (size >= 1e5) return Math.round(value).toLocaleString("en");
  if (size < 1e-3) return value.toFixed(Math.min(12, -Math.floor(Math.log10(size))));
  return size >= 100 ? value.toFixed(0) : size >= 10 ? value.toFixed(1) : size >= 1 ? value.toFixed(2) : value.toFixed(3);
}

// A mark of an axis: without zeros that say nothing.
const brief = (text) => text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");

function scaled(value, scales, least) {
  if (value === null || value === undefined) return "–";
  for (const [scale, unit] of scales) if (Math.abs(value) >= scale * 0.9995) return `${digits(value / scale)} ${unit}`;
  return value === 0 ? `0 ${least[1]}` : `${digits(value / least[0])} ${least[1]}`;
}

function showBytes(bytes) {
  for (const [scale, unit] of [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= scale) return `${bytes % scale ? digits(bytes / scale) : bytes / scale} ${unit}`;
  }
  return `${bytes} B`;
}

const showTime = (ns) => scaled(ns, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]], [1, "ns"]);
const showRate = (gb) => scaled(gb, [[1, "GB/s"], [1e-3, "MB/s"], [1e-6, "kB/s"]], [1e-9, "B/s"]);

function showPercent(value) {
  return value === null || value === undefined ? "–" : `${digits(value)} %`;
}

function signed(value) {
  return `${value > 0 ? "+" : ""}${digits(value)} %`;
}

// The unit for an axis of so many seconds.
function timeAxis(seconds) {
  if (seconds <= 180) return { scale: 1, label: "seconds since the start" };
  return seconds <= 3 * 3600 ? { scale: 60, label: "minutes since the start" } : { scale: 3600, label: "hours since the start" };
}

// Those within three interquartile ranges of the quartiles, unless nearly all are equal.
function inside(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const quartile = (share) => sorted[Math.round((sorted.length - 1) * share)];
  const [low, high] = [quartile(0.25), quartile(0.75)];
  return high > low ? values.filter((value) => value >= low - 3 * (high - low) && value <= high + 3 * (high - low)) : values;
}

// An axis: maps data to pixels, and places its marks, at most about `most`. Nothing lies below `least`; a fenced axis
// puts what is far from the rest at its edge.
function axis(values, { log = false, zero = false, whole = false, least = -Infinity, fenced = false, show = digits, base = 10 }, from, to, most) {
  let finite = values.filter((value) => Number.isFinite(value) && (!log || value > 0));
  if (fenced) finite = inside(finite);
  if (!finite.length) finite = [log ? 1 : 0, 1];
  let low = finite.reduce((a, b) => Math.min(a, b)), high = finite.reduce((a, b) => Math.max(a, b));
  if (zero) [low, high] = [Math.min(low, 0), Math.max(high, 0)];
  const size = Math.max(Math.abs(low), Math.abs(high));
  // Marks that lie closer than numbers can tell apart would have no end.
  if (high - low <= size * 1e-9) [low, high] = log ? [low / 2, high * 2] : [low - Math.max(1, size * 1e-6), high + Math.max(1, size * 1e-6)];
  const marks = [];
  if (log) {
    const power = Math.log(base);
    const first = Math.floor(Math.log(low) / power + 1e-9), last = Math.ceil(Math.log(high) / power - 1e-9);
    const every = Math.ceil((last - first) / (most ?? 8)) || 1;
    for (let at = first; at <= last; at += every) marks.push(base ** at);
    [low, high] = [base ** first, base ** last];
  } else {
    const rough = (high - low) / (most ?? 6), scale = 10 ** Math.floor(Math.log10(rough));
    const step = Math.max(scale * [1, 2, 5, 10].find((one) => one * scale >= rough), whole ? 1 : 0);
    low = Math.max(Math.floor(low / step) * step, least);
    high = Math.ceil(high / step) * step;
    for (let at = Math.ceil(low / step) * step; at <= high + step / 2; at += step) marks.push(Math.abs(at) < step / 1e6 ? 0 : Number(at.toPrecision(12)));
  }
  const place = log ? Math.log : (value) => value;
  const kept = (value) => fenced ? Math.min(Math.max(value, low), high) : value;
  const at = (value) => from + (place(kept(value)) - place(low)) / (place(high) - place(low)) * (to - from);
  return { at, marks, show: (value) => brief(show(value)) };
}

// The width of a text in a drawing, and the text shortened to a width.
const pen = document.createElement("canvas").getContext("2d");
pen.font = "12px system-ui, sans-serif";
const widthOf = (text) => pen.measureText(text).width;

function fitted(text, width) {
  if (widthOf(text) <= width) return text;
  let kept = text;
  while (kept && widthOf(`${kept}…`) > width) kept = kept.slice(0, -1);
  return kept ? `${kept}…` : "";
}

// A box whose drawing has its width, also when the window changes: text has one size everywhere.
const watcher = new ResizeObserver((entries) => entries.forEach((entry) => entry.target.redraw()));

function drawing(draw) {
  const box = element("div", { className: "drawing" });
  let width = 0;
  box.redraw = () => {
    const now = Math.floor(box.clientWidth);
    if (!now || now === width) return;
    width = now;
    hideHover();
    box.replaceChildren(draw(width));
  };
  watcher.observe(box);
  return box;
}

const redrawAll = (within) => within.querySelectorAll(".drawing").forEach((box) => box.redraw());

function canvas(title, width, height) {
  return shape("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title });
}

// Labels at the ends of lines, apart from each other: their middle heights.
function apart(heights, low, high) {
  const order = heights.map((_, index) => index).sort((a, b) => heights[a] - heights[b]);
  const placed = [...heights];
  order.forEach((index, rank) => { placed[index] = Math.max(placed[index], rank ? placed[order[rank - 1]] + LINE : low); });
  for (let rank = order.length - 1; rank >= 0; rank--) {
    placed[order[rank]] = Math.min(placed[order[rank]], rank === order.length - 1 ? high : placed[order[rank + 1]] - LINE);
  }
  return placed;
}

// Lines or dots. A series has name, color, points [x, y, what else to say, low and high end of its band], and perhaps
// label (at its end), dash, dots.
function chart(title, series, xOptions, yOptions) {
  return drawing((width) => drawChart(width, title, series, xOptions, yOptions));
}

function drawChart(width, title, series, xOptions, yOptions) {
  const good = (value, options) => Number.isFinite(value) && (!options.log || value > 0);
  const kept = series.map((one) => ({
    ...one, points: one.points.filter((point) => good(point[0], xOptions) && good(point[1], yOptions)),
  })).filter((one) => one.points.length);
  const all = kept.flatMap((one) => one.points);
  const lines = kept.filter((one) => !one.dots);
  const hasBands = lines.length <= LABELLED;
  const height = Math.round(Math.min(Math.max(0.62 * width, 220), 350));
  const last = (one) => one.points[one.points.length - 1];
  let labelled = lines;
  if (lines.length > LABELLED) {
    const order = [...lines].sort((a, b) => last(a)[1] - last(b)[1]);
    labelled = [...new Set([order[0], order[order.length >> 1], order[order.length - 1]])];
  }
  const labels = labelled.map((one) => one.label ?? one.name);
  const right = Math.max(28, Math.min(0.3 * width, 14 + Math.max(0, ...labels.map(widthOf))));
  const ys = all.flatMap((point) => hasBands && yOptions.fenced !== true ? [point[1], point[3], point[4]] : [point[1]]);
  const y = axis(ys, yOptions, height - BOTTOM, TOP, height < 260 ? 4 : undefined);
  const left = 12 + Math.max(...y.marks.map((mark) => widthOf(y.show(mark))));
  const x = axis(all.map((point) => point[0]), xOptions, left, width - right, Math.min(8, Math.max(2, Math.floor((width - left - right) / 64))));
  const svg = canvas(title, width, height);
  for (const mark of x.marks) {
    svg.append(shape("line", { class: "grid", x1: x.at(mark), x2: x.at(mark), y1: TOP, y2: height - BOTTOM }));
    svg.append(shape("text", { x: x.at(mark), y: height - BOTTOM + 18, "text-anchor": "middle" }, x.show(mark)));
  }
  for (const mark of y.marks) {
    svg.append(shape("line", { class: "grid", x1: left, x2: width - right, y1: y.at(mark), y2: y.at(mark) }));
    svg.append(shape("text", { x: left - 6, y: y.at(mark) + 4, "text-anchor": "end" }, y.show(mark)));
  }
  svg.append(shape("text", { x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle" }, xOptions.label));
  svg.append(shape("text", { x: 8, y: 17 }, fitted(yOptions.label, width - 16)));

  // Upright lines, such as for events.
  for (const at of xOptions.events ?? []) svg.append(shape("line", { class: "event", x1: x.at(at), x2: x.at(at), y1: TOP, y2: height - BOTTOM }));
  const places = [];
  const path = (pixels) => pixels.map(([px, py], index) => `${index ? "L" : "M"}${px.toFixed(1)},${py.toFixed(1)}`).join("");
  for (const one of kept) {
    const group = shape("g", { class: "series" });
    const pixels = one.points.map((point) => [x.at(point[0]), y.at(point[1])]);
    const band = one.points.filter((point) => good(point[3], yOptions) && good(point[4], yOptions));
    if (!one.dots && hasBands && band.length > 1) {
      const edge = (place) => band.map((point) => [x.at(point[0]), y.at(point[place])]);
      group.append(shape("path", { class: "band", d: `${path([...edge(3), ...edge(4).reverse()])}Z`, style: `fill:${one.color}` }));
    }
    if (!one.dots) {
      group.append(shape("path", { class: "curve", d: path(pixels), style: `stroke:${one.color}`, "stroke-dasharray": one.dash ?? "none" }));
    }
    if (one.dots || pixels.length <= 80) {
      for (const [px, py] of pixels) group.append(shape("circle", { cx: px.toFixed(1), cy: py.toFixed(1), r: one.dots || hasBands ? 2.4 : 1.6, style: `fill:${one.color}`, "fill-opacity": one.dots ? 0.7 : 1 }));
    }
    svg.append(group);
    pixels.forEach(([px, py], index) => places.push({ px, py, one, group, point: one.points[index] }));
  }
  const ends = labelled.map((one) => y.at(last(one)[1]));
  apart(ends, TOP + 2, height - BOTTOM - 2).forEach((at, index) => {
    const one = labelled[index];
    const from = x.at(last(one)[0]) + 4, to = width - right + 6;
    if (Math.abs(at - ends[index]) > 3 || to - from > 8) {
      svg.append(shape("line", { class: "leader", x1: from, y1: ends[index], x2: to - 1, y2: at, style: `stroke:${one.color}` }));
    }
    svg.append(shape("text", { class: "label", x: to, y: at + 4, style: `fill:${one.color}` }, fitted(labels[index], right - 10)));
  });
  hovering(svg, places, kept, (point) => point[2] ??
    `${xOptions.show ? xOptions.show(point[0]) : digits(point[0])}: ${yOptions.show ? yOptions.show(point[1]) : digits(point[1])}`);
  return svg;
}

// The figures of the point nearest to the mouse, and its line above the others.
function hovering(svg, places, kept, says) {
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
    const mx = event.clientX - box.left, my = event.clientY - box.top;
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
    showHover(event, `${best.one.name}\n${says(best.point)}`);
  });
}

function showHover(event, text) {
  const hover = document.getElementById("hover");
  hover.textContent = text;
  hover.hidden = false;
  const { width, height } = hover.getBoundingClientRect();
  hover.style.left = `${Math.max(8, Math.min(event.clientX + 14, innerWidth - width - 8))}px`;
  hover.style.top = `${Math.min(event.clientY + 14, innerHeight - height - 8)}px`;
}

function hideHover() {
  document.getElementById("hover").hidden = true;
}

// Shades from the lowest to the highest value; one pale shade where nothing stands out.
function shadesOf(values, show) {
  const low = Math.min(...values), high = Math.max(...values);
  const isEven = !(high > low * 1.05);
  return {
    share: (value) => isEven ? 0.15 : 0.1 + 0.9 * (value - low) / (high - low),
    words: !values.length ? "" : isEven ? `all within 5 %: ${show(low)} to ${show(high)}` : `shades from ${show(low)} to ${show(high)}`,
  };
}

// From rows to columns. A cell has a value, a text, and what else to say. Where texts have no room, a list has them.
function heatMap(title, names, cell, what, show) {
  const found = names.map((_, row) => names.map((_, column) => cell(row, column)));
  const cells = found.flat().filter(Boolean);
  const shades = shadesOf(cells.map((one) => one.value), show);
  const list = element("details", { hidden: true }, element("summary", { textContent: "the figures as a list" }),
    table(["pair", what], found.flatMap((row, from) => row.flatMap((one, to) => one ? [[`${names[from]} → ${names[to]}`, one.text]] : []))));
  const drawn = drawing((width) => {
    const left = Math.min(16 + Math.max(...names.map((name) => widthOf(`from ${name}`))), width * 0.35);
    const side = (width - left - 10) / names.length, tall = Math.min(side, 46);
    const heads = names.map((name) => `to ${name}`);
    const isUpright = heads.every((head) => widthOf(head) < side - 2);
    const top = isUpright ? 30 : 16 + Math.min(110, Math.max(...heads.map(widthOf)));
    const hasText = cells.every((one) => widthOf(one.text) < side - 6);
    list.hidden = hasText;
    const svg = canvas(title, width, Math.ceil(top + tall * names.length + 10));
    names.forEach((name, row) => {
      svg.append(shape("text", { x: left - 8, y: top + tall * (row + 0.5) + 4, "text-anchor": "end" }, fitted(`from ${name}`, left - 10)));
      const x = left + side * (row + 0.5);
      svg.append(isUpright ? shape("text", { x, y: top - 10, "text-anchor": "middle" }, heads[row])
        : shape("text", { x: x + 4, y: top - 6, transform: `rotate(-90 ${x + 4} ${top - 6})` }, fitted(heads[row], top - 10)));
      names.forEach((_, column) => {
        const one = found[row][column];
        const at = { x: left + side * column + 1, y: top + tall * row + 1, width: side - 2, height: tall - 2, rx: 4 };
        if (!one) {
          svg.append(shape("rect", { ...at, fill: "none", stroke: "var(--line)" }));
          return;
        }
        const share = Math.round(shades.share(one.value) * 100);
        const rect = shape("rect", { ...at, class: "cell", style: `fill:color-mix(in oklab, var(--heat-high) ${share}%, var(--heat-low))` });
        rect.addEventListener("pointermove", (event) => showHover(event, one.says));
        rect.addEventListener("pointerleave", hideHover);
        svg.append(rect);
        if (hasText) {
          svg.append(shape("text", { x: at.x + side / 2 - 1, y: at.y + tall / 2 + 3, "text-anchor": "middle", "pointer-events": "none", style: `fill:${share > 55 ? "var(--paper)" : "var(--ink)"}` }, one.text));
        }
      });
    });
    return svg;
  });
  return element("figure", {}, drawn, element("figcaption", { textContent: `${title}: ${what}, from rows to columns; ${shades.words}` }), list);
}

// One row per item, one block per range of sizes.
function ranges(title, rows, sizes) {
  return drawing((width) => {
    const step = 18, top = 8, right = 12;
    const left = Math.min(16 + Math.max(...rows.map((row) => widthOf(row.name))), width * 0.35);
    const height = top + rows.length * step + 30;
    const svg = canvas(title, width, height);
    const x = (index) => left + (width - right - left) * index / sizes.length;
    rows.forEach((row, line) => {
      const y = top + line * step;
      svg.append(shape("text", { x: left - 8, y: y + 12, "text-anchor": "end" }, fitted(row.name, left - 10)));
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
    const every = Math.ceil(sizes.length / Math.max(1, Math.floor((width - left - right) / 64)));
    sizes.forEach((size, index) => {
      if (index % every === 0 && x(index) + widthOf(showBytes(size)) < width) {
        svg.append(shape("text", { x: x(index), y: height - 10 }, showBytes(size)));
      }
    });
    return svg;
  });
}

// Words that a heading may be, and their sentences. Each is explained below the first table that has it.
const terms = {
  CV: "standard deviation divided by mean: how much the samples vary",
  "CPU s/GB": "seconds that the CPUs of both ends work for 10⁹ bytes",
};
const explained = new Set();

function term(word) {
  return terms[word] ? element("abbr", { textContent: word, title: terms[word] }) : word;
}

function explain(words) {
  const fresh = words.filter((word) => terms[word] && !explained.has(word));
  fresh.forEach((word) => explained.add(word));
  return fresh.map((word) => {
    const text = element("p", { className: "soft", textContent: `${word}: ${terms[word]}.` });
    text.dataset.term = word;
    return text;
  });
}

// Columns of figures are right-aligned, columns of words left-aligned.
const isFigure = (cell) => !(cell instanceof Node) && /^([–−+±≥<]|[\d.,]+( |$))/.test(String(cell));

function table(headings, rows, words = false) {
  const sides = headings.map((_, place) => rows.every((row) => isFigure(row[place])) ? "" : "text");
  const head = element("tr", {}, ...headings.map((heading, place) => element("th", { className: sides[place] }, term(heading))));
  const body = rows.map((row) => element("tr", {}, ...row.map((cell, place) => {
    const made = cell instanceof Node ? element("td", {}, cell) : element("td", { textContent: cell });
    made.dataset.label = headings[place];
    made.className = sides[place];
    return made;
  })));
  const made = element("table", { className: words ? "words" : "" }, element("thead", {}, head), element("tbody", {}, ...body));
  const both = document.createDocumentFragment();
  const box = element("div", { className: "scroll" }, made);
  both.append(rows.length * headings.length > LONG ? element("details", { className: "long", open: true }, element("summary", { textContent: `${rows.length} rows` }), box) : box, ...explain(headings));
  return both;
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
  main.append(...children.filter(Boolean));
}

function figure(drawn, caption) {
  return element("figure", {}, drawn, caption ? element("figcaption", { textContent: caption }) : null);
}

function notes(texts) {
  if (texts.length) section("Notes", "", element("ul", { className: "soft" }, ...texts.map((text) => element("li", { textContent: text }))));
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
  const redraw = () => {
    box.querySelectorAll("[data-term]").forEach((text) => explained.delete(text.dataset.term));
    box.replaceChildren(draw(...selects.map(([, select]) => select.value)));
    redrawAll(box);
  };
  selects.forEach(([, select]) => select.addEventListener("change", redraw));
  redraw();
  const shown = selects.filter(([, select]) => select.options.length > 1);
  return element("div", {}, shown.length ? element("p", {}, ...shown.map(([label, select]) => element("label", {}, `${label} `, select))) : null, box);
}

// The end of every page.
function finish() {
  redrawAll(document);
  if (innerWidth < 700) document.querySelectorAll("#run, .long").forEach((one) => { one.open = false; });
  document.documentElement.dataset.drawn = String(document.querySelectorAll("svg").length);
}
