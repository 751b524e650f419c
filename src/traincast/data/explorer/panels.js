// Everything around the canvas: the headline, what would help, notices, the selected operation, tables and charts.

/** Make a table: columns are [title, text or element of a row, whether it is words]. */
function table(columns, rows, caption) {
  const kind = (words) => (words ? { class: "words" } : {});
  const head = columns.map(([title, , words]) => element("th", { scope: "col", ...kind(words) }, title));
  const body = rows.map((row) =>
    element("tr", {}, ...columns.map(([, cell, words]) => element("td", kind(words), cell(row) ?? ""))));
  return element("table", { "aria-label": caption },
    element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body));
}

function headline(run, label) {
  const { result } = run;
  const { interval, parallel } = result;
  const facts = [];
  if (result.job) {
    const { seq_length, global_batch, micro_batch, precision, framework } = result.job;
    facts.push(`sequences of ${count(seq_length)} tokens, global batch ${count(global_batch)}, micro batch ${micro_batch}; ${precision}; ${framework}`);
  }
  const degrees = ["tp", "cp", "ep", "pp", "vpp", "dp"].filter((key) => parallel[key] > 1).map((key) => `${key} ${parallel[key]}`);
  if (parallel.world_size) facts.push([`${count(parallel.world_size)} ranks`, degrees.join(", ")].filter(Boolean).join(": "));
  if (parallel.microbatches) facts.push(`${parallel.microbatches} microbatch${parallel.microbatches > 1 ? "es" : ""}, schedule ${parallel.schedule}`);
  if (result.mfu !== null) facts.push(`${Number(result.tflops_per_gpu.toPrecision(4))} TFLOP/s a GPU, MFU ${(100 * result.mfu).toFixed(1)} %`);
  const said = [];
  if (interval) said.push(`between ${time(interval.low_s)} and ${time(interval.high_s)} (${Math.round(100 * interval.level)} % interval)`);
  if (result.measured_s) {
    const off = result.iteration_time_s / result.measured_s - 1;
    said.push(`measured ${time(result.measured_s)}: the simulation is ${(100 * Math.abs(off)).toFixed(1)} % ${off < 0 ? "below" : "above"}`);
  }
  return element("div", {},
    element("h1", {}, label ? `${label}: ${run.name}` : run.name),
    element("div", { class: "step" }, time(run.stepS)),
    said.length ? element("div", {}, said.join("; ")) : null,
    element("div", { class: "facts" }, facts.join(" \u00b7 ")));
}

function breakdown(run, colours, label) {
  const parts = Object.entries(run.result.breakdown_s).filter(([, seconds]) => seconds > 0);
  const bar = element("div", { class: "bar", role: "img", "aria-label": parts.map(([name, s]) => `${spaced(name)} ${share(s, run.stepS)}`).join(", ") },
    ...parts.map(([name, seconds]) => element("div", { colour: colours.owner(name), width: `${(100 * seconds) / run.stepS}%`, title: `${spaced(name)}: ${time(seconds)}` })));
  const rows = table([
    ["", ([name]) => element("span", {}, element("span", { class: "chip", colour: colours.owner(name) }), spaced(name)), true],
    ["time", ([, seconds]) => time(seconds)],
    ["share", ([, seconds]) => share(seconds, run.stepS)],
  ], parts, "Where the time goes");
  return element("div", {}, element("h2", {}, `Where the time goes${label ? `: ${label}` : ""}`), bar, rows);
}

/** Say what slows the step and what would help; a click shows the operations that a sentence is about. */
function helps(run, show) {
  const { advice } = run.header;
  if (!advice.length) return element("div", {}, element("h2", {}, "What takes longest"), longest(run));
  const line = (each) => (each.ranks.length
    ? element("button", { type: "button", class: "link", "aria-pressed": "false", onclick: (event) => show(run, each, event.currentTarget) }, each.text) : each.text);
  return element("div", {}, element("h2", {}, "What would help most"), element("ol", {}, ...advice.map((each) => element("li", {}, line(each)))));
}

function longest(run) {
  const last = run.result.ranks.reduce((a, b) => (b.end_s > a.end_s ? b : a));
  const shown = run.header.ranks.some((each) => each.rank === last.rank) ? last.rank : null;
  const sums = run.sums((op) => run.text("name_T", op), shown).sort((a, b) => b.runS - a.runS).slice(0, 5);
  return element("ol", {}, ...sums.map((each) => element("li", {}, `${each.text}: ${time(each.runS)} on rank ${shown ?? "all"} (${share(each.runS, run.stepS)})`)));
}

function notices(run) {
  const list = (title, notes, css, open) => notes.length ? element("details", { class: css, ...(open ? { open: "" } : {}) },
    element("summary", {}, `${title} (${notes.length})`),
    element("ul", {}, ...notes.map((each) => element("li", {}, each.text + (each.place ? ` (${each.place})` : ""))))) : null;
  return [list("Warnings", run.result.warnings, "warnings", run.result.warnings.length < 4), list("Assumptions", run.result.assumptions, "assumptions", false)].filter(Boolean);
}

/** Everything about the selected operation, with buttons that lead to what it depends on. */
function details(selected, go) {
  if (!selected) return [];
  const { run, op } = selected;
  const lane = run.laneFor(op);
  const group = run.header.groups[run.group[op]];
  const size = run.size_T[run.row[op]];
  const flops = run.flops_T[run.row[op]];
  const facts = [
    ["starts", time(run.startS(op))], ["takes", time(run.runS(op))],
    ["waited", run.wait[op] ? time(run.waitS(op)) : null],
    ["rank", `${lane.owner.rank}, stage ${lane.owner.stage}, ${lane.name}`],
    ["what", [run.text("phase_T", op), run.text("kind_T", op)].map((each) => spaced(each ?? "")).join(", ")],
    ["microbatch", run.microbatch[op] >= 0 ? String(run.microbatch[op]) : null],
    ["layer", run.layer_T[run.row[op]] >= 0 ? String(run.layer_T[run.row[op]]) : null],
    ["operation", run.text("operation_T", op) && spaced(run.text("operation_T", op))],
    ["size", size >= 0 ? bytes(size) : null],
    ["size / time", size > 0 && run.run[op] ? `${Number((size / run.runS(op) / 1e9).toPrecision(3))} GB/s` : null],
    ["FLOP/s", flops > 0 && run.run[op] ? `${Number((flops / run.runS(op) / 1e12).toPrecision(3))} TFLOP/s` : null],
    ["group", group ? `${group.kind}, ${group.size} ranks: ${group.members.slice(0, 8).join(", ")}${group.size > 8 ? " ..." : ""}` : null],
    ["on the critical path", run.onPath[op] ? "yes" : "no"],
    ["from", run.text("place_T", op)],
  ].filter(([, value]) => value);
  const link = (other) => element("button", { type: "button", onclick: () => go(run, other) },
    `${run.text("name_T", other)}, rank ${run.laneFor(other).owner.rank}`);
  const list = (title, ops) => ops.length ? element("div", {}, element("h2", {}, title),
    element("ul", {}, ...ops.slice(0, 8).map((other) => element("li", {}, link(other))), ops.length > 8 ? element("li", {}, `and ${ops.length - 8} more`) : null)) : null;
  const cause = run.causeOf(op);
  const partners = run.partners(op).sort((a, b) => run.ready[b] - run.ready[a]);
  return [
    element("h2", {}, "Selected operation"), element("strong", {}, run.text("name_T", op)),
    element("dl", {}, ...facts.flatMap(([key, value]) => [element("dt", {}, key), element("dd", {}, value)])),
    list("Could start when this ended", cause >= 0 ? [cause] : []),
    list("Runs together with (last to arrive first)", partners),
    list("Let these start", run.effects(op)),
  ].filter(Boolean);
}

/** Tables and charts by name; each returns its content for a run. */
const PANELS = {
  Operations(run, go) {
    const rows = run.sums((op) => run.text("name_T", op)).sort((a, b) => b.runS - a.runS).slice(0, 200);
    const all = rows.reduce((sum, row) => sum + row.runS, 0);
    return table([
      ["operation", (row) => element("button", { type: "button", onclick: () => go(run, row.longest, row.text) }, row.text), true],
      ["count", (row) => count(row.count)], ["time, all shown ranks", (row) => time(row.runS)], ["share", (row) => share(row.runS, all)],
      ["waiting", (row) => time(row.waitS)], ["longest", (row) => time(run.runS(row.longest))],
    ], rows, "Operations by name");
  },
  Ranks(run, go, colours, showRank) {
    const keys = Object.keys(run.result.breakdown_s).filter((key) => run.result.ranks.some((rank) => rank.breakdown_s[key] > 0));
    return table([
      ["rank", (rank) => (run.isShown(rank.rank) ? element("button", { type: "button", onclick: () => showRank(run, rank.rank) }, `rank ${rank.rank}`) : `rank ${rank.rank}`), true],
      ["stage", (rank) => String(rank.stage)], ["stands for", (rank) => count(rank.represents)],
      ...keys.map((key) => [spaced(key), (rank) => time(rank.breakdown_s[key])]), ["finish", (rank) => time(rank.end_s)],
    ], run.result.ranks.slice(0, 1024), "Ranks");
  },
  Communication(run) {
    const rows = [...run.result.collectives].sort((a, b) => b.count * b.time_s - a.count * a.time_s);
    return table([
      ["group", (row) => row.group, true], ["operation", (row) => spaced(row.op), true], ["size", (row) => bytes(row.size_bytes)],
      ["ranks / nodes", (row) => `${row.ranks} / ${row.nodes}`], ["count", (row) => count(row.count)], ["each", (row) => time(row.time_s)],
      ["total", (row) => time(row.count * row.time_s)], ["algorithm", (row) => [row.algorithm, row.protocol].filter(Boolean).join(" "), true],
    ], rows, "Communication");
  },
  Waits(run, go) {
    const ops = [];
    for (let op = 0; op < run.count; op++) if (run.wait[op]) ops.push(op);
    ops.sort((a, b) => run.wait[b] - run.wait[a]);
    return table([
      ["operation", (op) => element("button", { type: "button", onclick: () => go(run, op) }, run.text("name_T", op)), true],
      ["rank", (op) => String(run.laneFor(op).owner.rank)], ["at", (op) => time(run.readyS(op))], ["waited", (op) => time(run.waitS(op))],
      ["for rank", (op) => { const last = run.partners(op).sort((a, b) => run.ready[b] - run.ready[a])[0]; return last === undefined ? "" : String(run.laneFor(last).owner.rank); }],
    ], ops.slice(0, 200), "Longest waits");
  },
  "Critical path"(run, go) {
    const sums = new Map();
    let before = 0;
    for (const op of run.path) {
      const kind = run.kindOf(op);
      const sum = sums.get(kind) || { kind, seconds: 0, count: 0, longest: op };
      const own = run.endS(op) - Math.max(before, run.startS(op));
      sum.seconds += own;
      sum.count++;
      if (run.run[op] > run.run[sum.longest]) sum.longest = op;
      before = run.endS(op);
      sums.set(kind, sum);
    }
    return table([
      ["kind", (row) => element("button", { type: "button", onclick: () => go(run, row.longest) }, spaced(row.kind)), true],
      ["operations", (row) => count(row.count)], ["time on the path", (row) => time(row.seconds)], ["share of the step", (row) => share(row.seconds, run.stepS)],
    ], [...sums.values()].sort((a, b) => b.seconds - a.seconds), "Critical path by kind");
  },
  Memory(run, go, colours) {
    const stages = run.result.memory_bytes;
    if (!stages) {
      return element("div", {}, element("p", {}, "The memory is not known: the input does not say the model."), memoryCurves(run, colours));
    }
    const parts = ["parameters", "gradients", "optimizer", "activations", "other"];
    const hues = ["compute", "backward", "weight", "recompute", "other"];
    const most = Math.max(...stages.map((stage) => stage.peak || 0));
    const bars = stages.map((stage, at) => element("tr", {},
      element("td", { class: "words" }, `stage ${at}`),
      element("td", { class: "words" }, element("div", { class: "bar", role: "img", "aria-label": parts.map((part) => `${part} ${bytes(stage[part] || 0)}`).join(", ") },
        ...parts.map((part, n) => element("div", { colour: colours.of(hues[n]), width: `${(100 * (stage[part] || 0)) / most}%`, title: `${part} ${bytes(stage[part] || 0)}` })))),
      ...parts.map((part) => element("td", {}, bytes(stage[part] || 0))), element("td", {}, bytes(stage.peak || 0))));
    const head = ["", "at the peak", ...parts, "peak"].map((title, at) => element("th", { scope: "col", ...(at < 2 ? { class: "words" } : {}) }, title));
    return element("div", {},
      element("table", { "aria-label": "Memory of the stages" }, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...bars)),
      memoryCurves(run, colours));
  },
  "Who waits for whom"(run) {
    const { ranks, matrix_s } = run.header.waits;
    const rows = ranks.map((rank, at) => ({ rank, seconds: matrix_s[at] }));
    if (!rows.length) return element("p", {}, "No rank waits for another one.");
    const most = Math.max(...matrix_s.flat());
    const cell = (seconds) => (seconds > 0 ? element(seconds > most / 2 ? "strong" : "span", {}, time(seconds)) : "");
    return element("div", {},
      element("h2", {}, "How long ranks (rows) waited because of others (columns) that were not waiting themselves"),
      table([["rank", (row) => `rank ${row.rank}`, true], ...ranks.map((rank, at) => [String(rank), (row) => cell(row.seconds[at])])], rows, "Who waits for whom"));
  },
  "Link use"(run, go, colours) { return linkUse(run, colours); },
};

/** Chart what each stage holds over the step: bytes, or microbatches in flight where bytes are not known. */
function memoryCurves(run, colours) {
  const [width, height] = [960, 70];
  const curves = run.header.memory.slice(0, 64);
  if (!curves.length) return element("p", {}, "No operation is of a microbatch.");
  const most = Math.max(1e-9, ...curves.flatMap((curve) => curve.held));
  const charts = curves.map((curve) => {
    const x = (seconds) => (seconds * width) / run.stepS;
    const y = (held) => height - (held / most) * (height - 4);
    const steps = curve.time_s.map((seconds, at) => `${at ? `${x(seconds)},${y(curve.held[at - 1])} ` : ""}${x(seconds)},${y(curve.held[at])}`).join(" ");
    const peak = Math.max(...curve.held);
    const label = `stage ${curve.stage}, rank ${curve.rank}: at most ${curve.bytes ? bytes(peak) : `${peak} microbatches in flight`}`;
    return element("figure", {}, element("figcaption", {}, label),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, width: "100%", preserveAspectRatio: "none", height },
        svg("polygon", { points: `${x(curve.time_s[0])},${height} ${steps} ${width},${y(curve.held.at(-1))} ${width},${height}`, fill: colours.of("recompute") })));
  });
  return element("div", {}, element("h2", {}, "Memory over the step, by stage (all on one scale)"), ...charts);
}

/** Chart how many bytes a second each kind of group moves on one rank over the step. */
function linkUse(run, colours) {
  const bins = 240;
  const rank = run.header.ranks[0].rank;
  const of = new Map();
  for (const lane of run.lanes.filter((each) => each.owner.rank === rank)) {
    for (const op of lane.ops) {
      const size = run.size_T[run.row[op]];
      if (size <= 0 || !run.run[op]) continue;
      const kind = run.text("kind_of_group_T", op) || "others";
      if (!of.has(kind)) of.set(kind, new Float64Array(bins));
      const [from, to] = [(run.startS(op) / run.stepS) * bins, (run.endS(op) / run.stepS) * bins];
      for (let bin = Math.floor(from); bin < Math.min(to, bins); bin++) {
        of.get(kind)[bin] += (size * (Math.min(to, bin + 1) - Math.max(from, bin))) / (to - from);
      }
    }
  }
  const seconds = run.stepS / bins;
  const most = Math.max(1, ...[...of.values()].flatMap((sums) => [...sums])) / seconds;
  const [width, height] = [960, 90];
  const charts = [...of].map(([kind, sums]) => {
    const points = [...sums].map((sum, bin) => `${(bin * width) / bins},${height - (sum / seconds / most) * (height - 4)}`).join(" ");
    const total = sums.reduce((sum, each) => sum + each, 0);
    const label = `${kind}: ${bytes(total)} in the step, at most ${Number((Math.max(...sums) / seconds / 1e9).toPrecision(3))} GB/s`;
    return element("figure", {}, element("figcaption", {}, label),
      svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label, width: "100%", preserveAspectRatio: "none", height },
        svg("polygon", { points: `0,${height} ${points} ${width},${height}`, fill: colours.kind(kind) })));
  });
  return element("div", {}, element("h2", {}, `Bytes that rank ${rank} moves by group, over the step (all on one scale)`),
    ...(charts.length ? charts : [element("p", {}, "Nothing is communicated.")]));
}

/** Put two runs side by side: sums by kind and by operation, and the finish of each rank. */
function differences(a, b, go) {
  const pairs = (textOf) => {
    const of = (run) => new Map(run.sums(textOf(run)).map((each) => [each.text, each]));
    const [left, right] = [of(a), of(b)];
    return [...new Set([...left.keys(), ...right.keys()])].map((text) => ({ text, a: left.get(text), b: right.get(text) }))
      .map((row) => ({ ...row, by: (row.b?.runS ?? 0) - (row.a?.runS ?? 0) })).sort((x, y) => Math.abs(y.by) - Math.abs(x.by)).slice(0, 100);
  };
  const signed = (by) => element("span", { class: by < 0 ? "better" : by > 0 ? "worse" : "" }, `${by > 0 ? "+" : by < 0 ? "\u2212" : ""}${time(Math.abs(by))}`);
  const name = (row) => element("button", { type: "button", onclick: () => (row.b ? go(b, row.b.longest, row.text) : go(a, row.a.longest, row.text)) }, row.text);
  const columns = (what, first) => [[what, first, true], ["A", (row) => time(row.a?.runS ?? 0)], ["B", (row) => time(row.b?.runS ?? 0)],
    ["B \u2212 A", (row) => signed(row.by)], ["count A / B", (row) => `${count(row.a?.count ?? 0)} / ${count(row.b?.count ?? 0)}`]];
  const ranks = a.result.ranks.map((rank) => ({ a: rank, b: b.result.ranks.find((each) => each.rank === rank.rank) })).filter((row) => row.b);
  return element("div", {},
    element("h2", {}, `A is ${a.name}, B is ${b.name}; times of all shown ranks`),
    table(columns("kind", (row) => spaced(row.text)), pairs((run) => (op) => run.kindOf(op)), "Differences by kind"),
    element("h2", {}, "By rank"),
    table([["rank", (row) => String(row.a.rank), true], ["A finishes", (row) => time(row.a.end_s)], ["B finishes", (row) => time(row.b.end_s)], ["B \u2212 A", (row) => signed(row.b.end_s - row.a.end_s)]], ranks.slice(0, 256), "Differences by rank"),
    element("h2", {}, "By operation"),
    table(columns("operation", name), pairs((run) => (op) => run.text("name_T", op)), "Differences by operation"));
}
