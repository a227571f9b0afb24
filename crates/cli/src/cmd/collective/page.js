// The page of `polyrail collective`, from its JSON.

const bySize = { log: true, base: 2, show: showBytes, label: "size" };
const isOne = data.plugins.length === 1;
// The library without its folder, or which sockets.
const nameOf = (plugin) => plugin.plugin.split("/").pop();

Object.assign(terms, {
  "±": "half the range of the rounds, of their median; – for one round",
  "algorithm bandwidth": "the size divided by the time of an operation",
  "bus bandwidth": "the algorithm bandwidth times the share that each link has to carry, as nccl-tests count it",
  wrong: "elements that differ from the right result, of all ranks",
});

function sizes() {
  const lines = (value) => data.plugins.map((plugin, index) => ({
    name: nameOf(plugin), color: colorOf(index), dash: index ? "6 4" : "none",
    points: plugin.sizes.map((one) => [one.size_bytes, value(one, one.time_us.median), undefined, value(one, one.time_us.max), value(one, one.time_us.min)]),
  }));
  const rate = (one, us) => one.busbw_gb_per_s * one.time_us.median / us;
  section("By size", "A point for each size; the band is from the lowest to the highest round.", element("div", { className: "pair" },
    figure(chart("bus bandwidth against size", lines(rate), bySize, { log: true, show: showRate, label: "bus bandwidth" }), "Bus bandwidth; GB are 10⁹ bytes"),
    figure(chart("time against size", lines((one, us) => us * 1e3), bySize, { log: true, show: showTime, label: "time" }), "Time of an operation")));
  const varies = (one) => one.samples_us.length > 1 ? `${digits(50 * (one.time_us.max - one.time_us.min) / one.time_us.median)} %` : "–";
  main.append(table([...(isOne ? [] : ["plugin"]), "size", "time", "±", "algorithm bandwidth", "bus bandwidth", "wrong"], data.plugins.flatMap((plugin) => plugin.sizes.map((one) =>
    [...(isOne ? [] : [nameOf(plugin)]), showBytes(one.size_bytes), showTime(one.time_us.median * 1e3), varies(one), showRate(one.algbw_gb_per_s), showRate(one.busbw_gb_per_s), one.wrong ?? "–"]))));
}

if (data.plugins.some((plugin) => plugin.sizes.length)) sizes();
notes(data.notes);
