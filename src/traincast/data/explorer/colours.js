// Colours by what an operation is; the values are those of the style sheet, so that both themes have theirs.

const COLOUR_OF_KIND = {
  forward: "compute", backward: "backward", weight_gradient: "weight", recompute: "recompute", step: "once",
  tp: "tp", etp: "etp", cp: "cp", ep: "ep", pp: "pp", emb: "emb", dp: "dp", edp: "edp", shard: "shard", replica: "replica",
  copy: "copy", gap: "gap", wait: "wait", world: "world", mp: "mp",
};
const COLOUR_OF_OWNER = {
  compute: "compute", exposed_tp: "tp", exposed_cp: "cp", exposed_ep: "ep", exposed_pp: "pp", exposed_dp: "dp",
  bubble: "bubble", other: "other",
};
const MICROBATCH_HUES = 12;

class Colours {
  constructor() { this.by = "kind"; this.refresh(); }

  refresh() {
    const style = getComputedStyle(document.documentElement);
    this.of = (name) => style.getPropertyValue(`--${name}`).trim();
    const names = ["page", "panel", "line", "text", "soft", "accent", "wait", "path", "others", "once", "compute", "warn-back"];
    this.named = Object.fromEntries(names.map((name) => [name, this.of(name)]));
    this.cache = new Map();
  }

  kind(name) {
    if (!this.cache.has(name)) this.cache.set(name, this.of(COLOUR_OF_KIND[name] || "others"));
    return this.cache.get(name);
  }

  /** Return the colour of every template of a run; where microbatches colour, there is none. */
  ofRows(run) {
    if (this.by === "microbatch") return null;
    const rows = new Array(run.name_T.length);
    for (let op = 0; op < run.count; op++) rows[run.row[op]] ??= this.op(run, op);
    return rows;
  }

  op(run, op) {
    if (this.by === "microbatch") {
      const microbatch = run.microbatch[op];
      return microbatch < 0 ? this.named.once : `hsl(${(microbatch % MICROBATCH_HUES) * (360 / MICROBATCH_HUES)} 52% 50%)`;
    }
    if (this.by === "group") return this.kind(run.text("kind_of_group_T", op) || "step");
    return this.kind(run.kindOf(op));
  }

  owner(name) { return this.of(COLOUR_OF_OWNER[name] || "others"); }
}
