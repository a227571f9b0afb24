// The report itself, from the JSON of `polyrail analyze --json`.

const names = data.endpoints.map((endpoint) => endpoint.name);
const paths = [...new Set(data.links.map((link) => link.path))];
const sizes = [...new Set(data.configurations.map((one) => one.size_bytes))].sort((a, b) => a - b);
const quiet = data.configurations.filter((one) => one.load === "none");
const metricOf = Object.fromEntries(data.metrics.map((one) => [one.path, one.metric]));
const pairName = (one) => `${names[one.src]} → ${names[one.dst]}`;
const linkName = (one) => pairName(one) + (paths.length > 1 ? `, ${one.path}` : "");
const REGIMES = { latency_bound: ["latency-bound", "var(--c5)"], transition: ["transition", "var(--c4)"], bandwidth_bound: ["bandwidth-bound", "var(--c2)"] };
const bySize = { log: true, base: 2, show: showBytes, label: "size" };

const LOGGP = "LogGP parameters per range of sizes. L: time of an empty transfer. o: cost of posting and completion, both ends together. g: time between messages of a stream. G: time per byte. A dash means not measured.";

Object.assign(terms, {
  stream: "the rate of many messages under way at once, with the size that reaches it",
  "two states": "configurations whose samples fall into two groups, a faster and a slower one",
  "robust CV": "1.4826 times the median distance from the median, divided by the median; outliers can't move it",
  "CV, robust": "from medians, which outliers can't move",
  trend: "significant if samples without a trend show it less than once in a hundred times (Mann-Kendall)",
  metric: "the time that is measured: t_gpu by the GPU's clock, t_oneway from the source's clock to the sink's, t_rtt2 half of a round trip, t_host from posting to completion at the host",
  wander: "how far the windows of a clock are from their line",
  bound: "the largest error of an aligned time",
  "held-out error": "the error of the model at sizes that it was not fitted to",
});

function figures() {
  section("Paths", "", table(["path", "links", "smallest transfer", "best rate, median link", "best link", "worst link", "stream", "two states", "metric"], data.path_figures.map((one) =>
    [one.path, one.links, showTime(one.smallest_ns), showRate(one.median_gb_per_s), showRate(one.best_gb_per_s), showRate(one.worst_gb_per_s),
      showRate(one.stream_gb_per_s) + (one.stream_bytes ? ` of ${showBytes(one.stream_bytes)}` : ""), one.two_states, metricOf[one.path]])));
}

function curves() {
  const says = (one) => `${showBytes(one.size_bytes)}: ${showTime(one.median_ns)}, ${digits(one.gb_per_s)} GB/s\n` +
    (one.interval_ns ? `95 % interval ${showTime(one.interval_ns[0])} to ${showTime(one.interval_ns[1])}\n` : "") +
    (one.clock_uncertainty_ns ? `clocks agree within ${showTime(one.clock_uncertainty_ns)}\n` : "") +
    (one.states ? `two states: ${one.states.map((state) => `${showTime(state.median_ns)} (${showPercent(state.share_percent)})`).join(" and ")}\n` : "") +
    `CV ${showPercent(one.cv_percent)}, ${one.samples} samples, ${one.metric}`;
  // One direction of a pair is solid, the other dashed.
  const series = (path, colorBy, value) => data.links.filter((link) => path === "all" || link.path === path).map((link) => {
    const key = colorBy === "path" ? paths.indexOf(link.path) : colorBy === "source" ? link.src : link.dst;
    const own = quiet.filter((one) => one.src === link.src && one.dst === link.dst && one.path === link.path);
    const points = own.sort((a, b) => a.size_bytes - b.size_bytes).map((one) =>
      [one.size_bytes, value(one, one.median_ns), says(one), value(one, one.p10_ns), value(one, one.p90_ns)]);
    const label = `${link.src}→${link.dst}${paths.length > 1 ? ` ${link.path}` : ""}`;
    return { name: linkName(link), label, color: colorOf(key), dash: link.src > link.dst ? "6 4" : "none", points };
  });
  const entries = (path, colorBy) => colorBy === "path"
    ? paths.filter((one) => path === "all" || one === path).map((one) => [one, colorOf(paths.indexOf(one))])
    : names.map((name, rank) => [`${colorBy === "source" ? "from" : "to"} ${name}`, colorOf(rank)]);
  const rate = (one, ns) => one.size_bytes / ns, time = (one, ns) => ns;
  const both = (path, colorBy) => element("div", { className: "pair" },
    figure(chart("bandwidth against size", series(path, colorBy, rate), bySize, { log: true, show: showRate, label: "bandwidth" }), "Bandwidth; GB are 10⁹ bytes"),
    figure(chart("time against size", series(path, colorBy, time), bySize, { log: true, show: showTime, label: "time" }), "Time of a transfer"));
  const isFew = data.links.length <= LABELLED;
  const ranks = names.map((name, rank) => `${rank} is ${name}`).join(", ");
  const text = `One line per ${paths.length > 1 ? "path and direction" : "direction"}: medians of all samples. ` +
    (isFew ? `The band is where the samples from the 10th to the 90th percentile are; ${ranks}. ` : "Labels name the best, the middle and the worst line at the largest size. ") +
    "Lines from a lower to a higher rank are solid, those back are dashed. Point at a line for its figures.";
  section("Bandwidth and time", text, isFew ? both("all", paths.length > 1 ? "path" : "source") : chosen([["path", [["all", "all"], ...paths.map((path) => [path, path])]],
    ["color by", [["path", "path", paths.length > 1], ["source", "source", paths.length === 1], ["sink", "sink"]]]], (path, colorBy) =>
    element("div", {}, legend(entries(path, colorBy)), both(path, colorBy))));
}

function matrix() {
  const usual = sizes[sizes.length - 1];
  const one = (path, size, what) => {
    const value = { rate: (one) => one.gb_per_s, time: (one) => one.median_ns, cv: (one) => one.cv_percent }[what];
    const show = { rate: showRate, time: showTime, cv: showPercent }[what];
    const found = quiet.filter((one) => one.path === path && one.size_bytes === Number(size) && value(one) !== null);
    return heatMap(path, names, (row, column) => {
      const one = found.find((cell) => cell.src === row && cell.dst === column);
      return one && { value: value(one), text: what === "rate" ? digits(value(one)) : show(value(one)),
        says: `${linkName(one)}\n${showBytes(one.size_bytes)}: ${showTime(one.median_ns)}, ${showRate(one.gb_per_s)}, CV ${showPercent(one.cv_percent)}` };
    }, { rate: `GB/s of ${showBytes(Number(size))}`, time: `time of ${showBytes(Number(size))}`, cv: `CV of ${showBytes(Number(size))}` }[what], show);
  };
  section("Pairs", "The darker, the larger. Point at a pair for its figures.", chosen([
    ...(paths.length > 6 ? [["path", paths.map((path) => [path, path])]] : [["", [["", "all"]]]]),
    ["size", sizes.map((size) => [String(size), showBytes(size), size === usual])],
    ["show", [["rate", "bandwidth"], ["time", "time"], ["cv", "variation"]]],
  ], (path, size, what) => element("div", { className: "pair" }, ...(path ? [path] : paths).map((path) => one(path, size, what)))));
  if (data.asymmetries.length) {
    main.append(element("h3", { textContent: "Directions that differ" }));
    main.append(table(["slower way", "sizes", "slower by", "sizes apart"], data.asymmetries.map((one) =>
      [linkName(one), one.sizes === "small" ? "≤ 4 KiB" : "≥ 1 MiB", showPercent(one.slower_percent), `${one.sizes_apart} of ${one.sizes_compared}`])));
  }
  if (data.slow_links.length) {
    main.append(element("h3", { textContent: "Links slower than the median link of their path" }));
    main.append(table(["link", "sizes", "slower by"], data.slow_links.map((one) =>
      [linkName(one), one.sizes === "small" ? "≤ 4 KiB" : "≥ 1 MiB", showPercent(one.slower_percent)])));
  }
}

function regimes() {
  const linkRow = (link) => ({
    name: pairName(link),
    blocks: link.model.regimes.map((one) => ({ from: one.from_bytes, to: one.to_bytes, color: REGIMES[one.kind][1],
      says: `${REGIMES[one.kind][0]}, ${showBytes(one.from_bytes)} to ${showBytes(one.to_bytes)}` })),
    cuts: link.model.breaks.map((one) => one.before_bytes),
  });
  section("Regimes", "What limits each link at each size, judged by how fast time grows with size. A bar marks a break, where one line of the model ends and the next begins; usually the protocol changes there.",
    chosen(paths.length > 6 ? [["path", paths.map((path) => [path, path])]] : [], (...only) => element("div", {}, ...(only.length ? only : paths).map((path) => {
      const links = data.links.filter((link) => link.path === path && link.model && !link.model.refused);
      const refused = data.links.filter((link) => link.path === path && link.model?.refused);
      const rows = links.flatMap((link) => link.loggp.map((one, index) => {
        const segment = link.model.segments[index];
        return [pairName(link), `${showBytes(one.from_bytes)} – ${showBytes(one.to_bytes)}`,
          showTime(one.latency_ns) + (one.latency_includes_overhead ? " with o" : ""), showTime(one.overhead_ns), showTime(one.gap_ns),
          digits(one.gap_per_byte_ns * 1e3), one.gap_per_byte_ns > 0 ? digits(1 / one.gap_per_byte_ns) : "–", showPercent(segment.max_error_percent),
          showPercent(link.model.held_out_error_percent)];
      }));
      const few = data.links.filter((link) => link.path === path && !link.model);
      const lines = few.filter((link) => link.alpha_beta && !link.alpha_beta.refused);
      const soft = (textContent) => element("p", { className: "soft", textContent });
      return element("div", {}, ...refused.map((link) => element("div", { className: "warning", textContent: `No model of ${pairName(link)}: ${link.model.refused}.` })),
        ...(links.length ? [legend(Object.values(REGIMES)), figure(ranges("regimes by size", links.map(linkRow), sizes), paths.length > 1 ? path : ""),
          soft(LOGGP), table(["link", "sizes", "L", "o (both ends)", "g", "G, ps/byte", "GB/s", "worst size off by", "held-out error"], rows)] : []),
        ...(few.length ? [soft(`Links measured at fewer than 3 sizes have no regimes and no LogGP parameters: ${few.length}.${lines.length ? " One line through their sizes:" : ""}`)] : []),
        ...(lines.length ? [table(["link", "latency", "GB/s"], lines.map((link) =>
          [pairName(link), showTime(link.alpha_beta.latency_ns), digits(link.alpha_beta.gb_per_s)]))] : []));
    }))));
}

function variance() {
  const series = paths.map((path, index) => ({ name: path, dots: true, color: colorOf(index),
    points: quiet.filter((one) => one.path === path).map((one) =>
      [one.size_bytes, one.cv_percent, `${linkName(one)}, ${showBytes(one.size_bytes)}\nCV ${showPercent(one.cv_percent)}, robust ${showPercent(one.robust_cv_percent)}, ${one.outliers} outliers`]) }));
  const robust = series.map((one, index) => ({ ...one, points: quiet.filter((each) => each.path === paths[index]).map((each) => [each.size_bytes, each.robust_cv_percent]) }));
  section("Variation", "For each configuration: standard deviation divided by mean (CV), and the same from medians, which outliers can't move.",
    legend(paths.map((path, index) => [path, colorOf(index)])),
    element("div", { className: "pair" },
      figure(chart("variation against size", series, bySize, { log: true, show: showPercent, label: "CV" }), "CV"),
      figure(chart("robust variation against size", robust, bySize, { log: true, show: showPercent, label: "robust CV" }), "Robust CV")));
  if (data.states.length) {
    main.append(element("h3", { textContent: "Sources in two states: excess over the fastest transfer of the same size" }));
    main.append(table(["from", "path", "sizes up to", "faster", "samples", "slower", "samples"], data.states.map((one) =>
      [names[one.src], one.path, showBytes(one.to_bytes), ...one.states.flatMap((state) => [showTime(state.median_ns), showPercent(state.share_percent)])])));
  }
  const two = quiet.filter((one) => one.states);
  if (two.length) {
    main.append(element("h3", { textContent: "Configurations in two states" }));
    main.append(table(["link", "size", "CV", "faster", "samples", "slower", "samples"], two.slice(0, 24).map((one) =>
      [linkName(one), showBytes(one.size_bytes), showPercent(one.cv_percent), ...one.states.flatMap((state) => [showTime(state.median_ns), showPercent(state.share_percent)])])));
  }
  const worst = [...data.outliers].sort((a, b) => Math.abs(Math.log(b.factor)) - Math.abs(Math.log(a.factor))).slice(0, 15);
  if (worst.length) {
    main.append(element("h3", { textContent: `Farthest of ${data.outliers.length} outliers; they count in every figure` }));
    const one = (outlier) => data.configurations.find((each) => each.configuration === outlier.configuration);
    main.append(table(["link", "size", "repetition", "time", "by median", "flags"], worst.map((outlier) =>
      [linkName(one(outlier)), showBytes(one(outlier).size_bytes), outlier.repetition, showTime(outlier.time_ns), digits(outlier.factor), outlier.flags || "–"])));
  }
}

// Medians of neighbours, so that at most `most` points remain.
function smoothed(series, most) {
  const step = Math.ceil(series.length / most), middle = (values) => [...values].sort((a, b) => a - b)[values.length >> 1];
  const slices = Array.from({ length: Math.ceil(series.length / step) }, (_, at) => series.slice(at * step, (at + 1) * step));
  return slices.map((slice) => [middle(slice.map((point) => point[0])), middle(slice.map((point) => point[1]))]);
}

function drift() {
  if (!data.drift.length) return;
  const title = { sentinel: "sentinel", small: "≤ 4 KiB", large: "≥ 1 MiB" };
  const time = timeAxis(60 * Math.max(...data.drift.flatMap((one) => one.series.map(([minute]) => minute))));
  const line = (one, index) => ({ name: title[one.of], color: colorOf(index),
    points: smoothed(one.series, 60).map(([minute, ratio]) => [minute * 60 / time.scale, (ratio - 1) * 100]) });
  section("Drift", "Time of each sample divided by the median of its configuration, as medians of slices of the profile; the sentinel is one configuration that is measured again and again. Slices far from all others stand at the edge of the chart.",
    element("div", { className: "pair" }, figure(chart("drift", data.drift.map(line),
      { label: time.label, show: digits }, { label: "longer than the median", zero: true, least: -100, fenced: true, show: showPercent }), "Drift")),
    table(["samples", "how many", "trend", "start to end", "per minute", "per °C", "correlation with temperature"], data.drift.map((one) =>
      [title[one.of], one.samples, one.has_trend ? "yes" : "no", signed(one.from_start_to_end_percent), one.percent_per_minute === null ? "–" : signed(one.percent_per_minute),
        one.percent_per_degree === null ? "–" : signed(one.percent_per_degree), digits(one.temperature_correlation)])));
}

function thermals() {
  if (!data.thermals.length) return;
  const time = timeAxis(60 * Math.max(...data.thermals.flatMap((one) => one.series.map((point) => point.minute))));
  const line = (key) => data.thermals.map((one) => ({ name: names[one.rank], color: colorOf(one.rank), points: one.series.map((point) => [point.minute * 60 / time.scale, point[key]]) }));
  const range = (three, unit) => three ? `${digits(three[0])} – ${digits(three[1])} – ${digits(three[2])} ${unit}` : "–";
  section("Temperature and clocks", "",
    element("div", { className: "pair" },
      figure(chart("temperature over time", line("temperature_c"), { label: time.label }, { label: "°C" }), "Temperature"),
      figure(chart("power over time", line("power_w"), { label: time.label }, { label: "W" }), "Power")),
    table(["device", "looks", "temperature", "power", "processor clock", "held back"], data.thermals.map((one) =>
      [names[one.rank], one.looks, range(one.temperature_c, "°C"), range(one.power_w, "W"), range(one.sm_clock_mhz, "MHz"), `${one.throttled_looks} times`])));
}

function clocks() {
  const { clocks, triangles } = data.clocks;
  if (!clocks.length) return;
  section("Clock alignment", "How far each window's offset is from a line through all of them. One-way times follow the windows, not the line; the bound limits the error of an aligned time.",
    figure(chart("clock offsets", clocks.map((one, index) => ({ name: one.name, color: colorOf(index),
      points: one.series.map(([second, ns, half]) => [second, ns, `${digits(second)} s: ${showTime(ns)} ± ${showTime(half)}`]) })),
    { label: "seconds since the start" }, { label: "offset from the line", show: showTime, zero: true })),
    table(["clock", "rate, ppm", "±", "tick", "windows", "anchors", "wander", "bound", "method"], clocks.map((one) =>
      [one.name, digits(one.rate_ppm), digits(one.rate_ci_ppm), showTime(one.tick_ns), one.windows, one.anchors, showTime(one.wander_ns), showTime(one.bound_ns), one.methods.join(", ")])));
  if (triangles.length) {
    const name = (id) => clocks.find((one) => one.clock === id)?.name ?? `clock ${id}`;
    main.append(element("h3", { textContent: "Checked between devices directly" }));
    main.append(table(["clocks", "comparisons", "median gap", "largest", "possible", "closes"], triangles.map((one) =>
      [`${name(one.clock)}, ${name(one.peer)}`, one.anchors, showTime(one.median_ns), showTime(one.max_ns), showTime(one.bound_ns), verdict(one.closes ? "yes" : "no")])));
  }
}

const TONES = { same: "good", faster: "good", right: "good", yes: "good", slower: "bad", too_fast: "bad", too_slow: "bad", no: "bad", unclear: "unclear" };
function verdict(word) {
  return element("span", { className: TONES[word] ?? "", textContent: word.replace("_", " ") });
}

function comparison() {
  const found = data.comparison;
  if (!found) return;
  const kinds = ["same", "faster", "slower", "unclear"];
  const colors = { same: "var(--c7)", faster: "var(--c2)", slower: "var(--c1)", unclear: "var(--c4)" };
  section("Against another profile", `The base is ${found.base}. A change counts when the confidence intervals don't touch and it is more than ${found.matters_percent} %.`);
  main.append(element("p", {}, "All in all: ", verdict(found.verdict), "."));
  for (const warning of found.warnings) main.append(element("div", { className: "warning", textContent: warning }));
  main.append(table(kinds.concat(["only in one", ...found.ratios.map(([path]) => `${path}, time by base`)]),
    [kinds.map((kind) => found.counts[kind] ?? 0).concat([found.unmatched, ...found.ratios.map(([, ratio]) => digits(ratio))])]));
  main.append(legend(kinds.map((kind) => [kind, colors[kind]])));
  main.append(figure(chart("change against size", kinds.map((kind) => ({ name: kind, dots: true, color: colors[kind],
    points: found.points.filter((point) => point.verdict === kind).map((point) => [point.size_bytes, point.change_percent,
      `${linkName(point)}, ${showBytes(point.size_bytes)}\n${showTime(point.base_ns)} → ${showTime(point.now_ns)}, ${signed(point.change_percent)}`]) })),
  bySize, { label: "longer than the base", show: showPercent, zero: true })));
}

function predictions() {
  const found = data.predictions;
  if (!found) return;
  const simulator = found.simulators.join(", ") || "the simulator";
  section("Simulator against measurement", `${found.file}, ${simulator}. The error is predicted / measured − 1: below zero the simulator is too optimistic. Right means inside the confidence interval of the median, or within 2 % of it; unclear, inside one that reaches farther than 20 %. Measured: ${paths.map((path) => `${path} by ${metricOf[path]}`).join(", ")}.`);
  const errors = (one) => [one.points, signed(one.bias_percent), showPercent(one.mape_percent), showPercent(one.median_abs_percent), digits(one.geometric_mean_ratio), signed(one.worst_percent), showPercent(one.right_percent)];
  const heads = ["points", "bias", "mean error", "median error", "geometric mean ratio", "worst", "right"];
  main.append(table(["over", ...heads], [["all", ...errors(found.total)],
    ...found.by_regime.map(([kind, one]) => [REGIMES[kind][0], ...errors(one)])]));
  if (found.not_measured || found.not_predicted) {
    main.append(element("p", { className: "soft", textContent: `${found.not_measured} predictions match no measurement, and ${found.not_predicted} configurations have none.` }));
  }
  const links = found.by_link;
  const kinds = [["right", "var(--c2)"], ["too_fast", "var(--c1)"], ["too_slow", "var(--c6)"], ["unclear", "var(--c4)"]];
  const dots = kinds.map(([kind, color]) => ({ name: kind.replace("_", " "), dots: true, color,
    points: found.points.filter((point) => point.verdict === kind).map((point) => [point.size_bytes, point.error_percent,
      `${linkName(point)}, ${showBytes(point.size_bytes)}\nmeasured ${showTime(point.measured_ns)}, predicted ${showTime(point.predicted_ns)}\n${signed(point.error_percent)}`]) }));
  const worst = chosen([["link", links.map((link, index) => [String(index), `${linkName(link)}${index ? "" : " (worst)"}`])]], (index) => {
    const link = links[Number(index)];
    const own = found.points.filter((point) => point.src === link.src && point.dst === link.dst && point.path === link.path);
    return element("div", {}, figure(chart("measured and predicted", [
      { name: "measured", color: "var(--c0)", points: own.map((point) => [point.size_bytes, point.measured_ns]) },
      { name: "predicted", color: "var(--c1)", dash: "6 4", points: own.map((point) => [point.size_bytes, point.predicted_ns]) },
    ], bySize, { log: true, show: showTime, label: "time" }), "Measured against predicted"));
  });
  main.append(element("div", { className: "pair" },
    element("div", {}, legend(kinds.map(([kind, color]) => [kind.replace("_", " "), color])), figure(chart("error against size", dots, bySize, { label: "error", show: showPercent, zero: true }), "Error of each point")), worst));
  const line = (one) => !one ? "–" : one.refused ? `none: ${showPercent(one.error.p90_percent)} off` : `${showTime(one.latency_ns)}, ${digits(one.gb_per_s)} GB/s`;
  main.append(table(["link, worst first", ...heads, "line through predictions", "line through measurements"],
    links.slice(0, 24).map((link) => [linkName(link), ...errors(link.errors), line(link.predicted), line(link.measured)])));
}

function definitions() {
  section("What the figures are", "");
  main.append(table(["path", "metric", "definition"], data.metrics.map((one) => [one.path, one.metric, one.definition]), true));
  for (const paragraph of [
    "GB are 10⁹ bytes. Every figure is a median of all samples; intervals use only the order of the samples and assume no distribution.",
  ]) main.append(element("p", { className: "soft", textContent: paragraph }));
  if (Object.keys(data.about.timer_floor_ns).length) {
    main.append(table(["timer floor of", "time"], Object.entries(data.about.timer_floor_ns).map(([metric, ns]) => [metric, showTime(ns)])));
  }
}

figures();
curves();
matrix();
regimes();
variance();
comparison();
predictions();
drift();
thermals();
clocks();
definitions();
notes(data.about.notes);
