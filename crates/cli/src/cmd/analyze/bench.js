// The page of `polyrail bench`, from its JSON.

const results = [...data.results].sort((a, b) => a.size_bytes - b.size_bytes);
const bySize = { log: true, base: 2, show: showBytes, label: "size" };
const micros = (us) => us === null || us === undefined ? "–" : showTime(us * 1e3);
// With --fit each size is written and read.
const ops = [...new Set(results.map((one) => one.op))];
const nameOf = (one) => ops.length > 1 ? `${showBytes(one.size_bytes)} ${one.op}` : showBytes(one.size_bytes);
const rateOf = (sample) => sample.bytes / 1e9 / sample.seconds;

Object.assign(terms, {
  "±": "half the range of the rounds, of their median; – for one round",
  verified: "bytes that were compared with the source and were right",
  "segments again": "TCP segments that the kernel sent again, since they or their acknowledgements were lost or late",
  "chunks again": "chunks that went over this or another rail again, because their flow died or stalled",
});

// Each end in each direction, with --fit.
function fit() {
  if (!data.fit) return;
  const range = (spread) => `${digits(spread.median)} (${digits(spread.min)} to ${digits(spread.max)})`;
  const pays = data.fit.pays_from_bytes;
  section("Does it fit?", `${data.fit.asked}: ${digits(data.fit.asked_gbit_per_s)} Gbit/s.${pays ? ` Pays from ${showBytes(pays)}: below, CPU time per byte is more than 1.25 times that of large transfers.` : ""}`,
    table(["end", "size", "CPU s/GB of the end", "CPUs for it", "CPUs here", "most that fits", "copies of memory"], data.fit.ends.map((end) =>
      [`${end.host} ${end.way}`, showBytes(end.size_bytes), range(end.cpu_seconds_per_gb), range(end.cpus_needed), end.cpus_allowed,
        `${digits(end.most_gbit_per_s)} Gbit/s`, end.memory_gbit_per_s === null ? "–" : `${digits(end.memory_gbit_per_s)} Gbit/s`])));
}

function sizes() {
  const varies = (one) => one.samples.length > 1 && one.gb_per_s > 0
    ? `${digits(50 * (one.spread_gb_per_s.max - one.spread_gb_per_s.min) / one.gb_per_s)} %` : "–";
  const line = (name, value, low, high) => ops.map((op, index) => ({
    name: ops.length > 1 ? op : name, color: colorOf(index),
    points: results.filter((one) => one.op === op).map((one) => [one.size_bytes, value(one), undefined, low?.(one), high?.(one)]),
  }));
  const charts = new Set(results.map((one) => one.size_bytes)).size < 2 ? [] : [
    figure(chart("bandwidth against size", line("rate", (one) => one.gb_per_s, (one) => one.spread_gb_per_s.min, (one) => one.spread_gb_per_s.max), bySize, { log: true, show: showRate, label: "bandwidth" }), "Bandwidth, with a band from the lowest to the highest round; GB are 10⁹ bytes"),
    figure(chart("time against size", line("median", (one) => one.latency_us?.p50 * 1e3, (one) => one.latency_us?.p50 * 1e3, (one) => one.latency_us?.p99 * 1e3), bySize, { log: true, show: showTime, label: "time" }), "Time of a transfer, with a band from the median to the 99th percentile"),
    figure(chart("CPU time against size", line("CPU", (one) => one.cpu_seconds_per_gb), bySize, { log: true, show: digits, label: "CPU s/GB" }), "CPU time of both ends")];
  section("Sizes and rounds", "", element("div", { className: "pair" }, ...charts, rounds()));
  main.append(table(["size", "op", "GB/s", "±", "median time", "99 %", "CPU s/GB", "depth", "verified", "limit"], results.map((one) =>
    [showBytes(one.size_bytes), one.op, digits(one.gb_per_s), varies(one), micros(one.latency_us?.p50), micros(one.latency_us?.p99),
      digits(one.cpu_seconds_per_gb), one.depth, showBytes(one.verified_bytes), one.limit.verdict.replace("_", " ")])));
}

// The last six sizes with more than one round, and events as upright lines.
function rounds() {
  const shown = results.filter((one) => one.samples.length > 1).slice(-6);
  if (!shown.length) return null;
  const events = [...new Set(shown.flatMap((one) => (one.events ?? []).map((event) => event.round)))];
  return figure(chart("rate of each round", shown.map((one, index) => ({ name: nameOf(one), color: colorOf(index), points: one.samples.map((sample, at) => [at + 1, rateOf(sample)]) })),
    { label: "round", whole: true, events }, { show: showRate, zero: true, label: "bandwidth" }), `The rate of each round${events.length ? "; a dashed upright line is a round with an event" : ""}`);
}

function rails() {
  const rows = results.flatMap((one) => one.rails.map((rail) =>
    [rail.name, nameOf(one), showPercent(100 * rail.share), showRate(rail.gb_per_s), rail.retransmits, rail.resent_chunks]));
  if (rows.length) section("Rails", "", table(["rail", "size", "share", "rate", "segments again", "chunks again"], rows));
}

function events() {
  const words = { down: "down", back: "back", resent: "chunks sent again", slow: "slow" };
  const rows = results.flatMap((one) => (one.events ?? []).map((event) =>
    [`${digits(event.at_s)} s`, nameOf(one), event.round, `${event.rail} ${event.end}`, `${event.what === "resent" ? `${event.count} ` : ""}${words[event.what]}`, event.because ?? "–"]));
  if (rows.length) section("Events", "Times are those of the sample that shows it first.", table(["after", "size", "round", "rail", "event", "because"], rows, true));
}

function others() {
  const rows = results.flatMap((one) => [
    ...(one.against ? [["plain sockets", one.against.raw_gb_per_s, one.against.ratio, one.against.spread_ratio]] : []),
    ...(one.baselines ?? []).map((base) => [base.name, base.gb_per_s, base.ratio, base.spread_ratio]),
  ].map(([name, rate, ratio, spread]) => [nameOf(one), name, showRate(rate), `${digits(ratio)}${spread ? ` (${digits(spread.min)} to ${digits(spread.max)})` : ""}`]));
  if (rows.length) section("In turn with others", "The ratio is the median over the rounds, of each round by itself, with the lowest and the highest.", table(["size", "other", "its rate", "ratio"], rows));
}

fit();
events();
sizes();
rails();
others();
notes(data.notes);
