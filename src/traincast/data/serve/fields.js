// Which fields the form shows where, and what they are called there; all else comes from /api/about.

/** Fields that most jobs say, in the order of the form: rows of fields that stand next to each other. */
export const MAIN = [
  { title: "What runs where", rows: [["model"], ["cluster", "gpus"]] },
  { title: "Batch", rows: [["seq_length", "global_batch", "micro_batch"]] },
  { title: "Layout", rows: [["tp", "pp", "vpp"], ["cp", "ep", "etp"], ["zero", "schedule"]] },
  { title: "Software", rows: [["framework"], ["precision", "recompute"]] },
];
export const RUN = { title: "Whole run", fields: ["tokens", "gpu_hour_price", "currency", "failures", "gpu_power_w", "pue", "grid_intensity"] };
const LABELS = {
  gpus: "GPUs", seq_length: "Sequence", global_batch: "Global batch", micro_batch: "Micro batch", tp: "TP", pp: "PP", vpp: "VPP", cp: "CP",
  ep: "EP", etp: "ETP", zero: "ZeRO", gpu_hour_price: "Cost of a GPU-hour", gpu_power_w: "Power of a GPU, W", pue: "PUE",
  grid_intensity: "Grid, g CO2/kWh", tokens: "Tokens of the run", allow_oom: "Run out of memory", gpus_used_per_node: "GPUs used per node",
};
/** What a job can say besides the fields of a step. */
const ADDED = [
  { name: "cluster", takes: "text", help: "Cluster, or the GPU of one.", flag: "--cluster", section: "Parallel layout" },
  { name: "recipe", takes: "text", help: "Start from the settings of a published recipe; all that is given wins.", flag: "--recipe", section: "Model and batch" },
  { name: "allow_oom", takes: "switch", help: "Forecast a job also where it does not fit into memory.", flag: "--allow-oom", section: "Recompute and offload" },
  { name: "tokens", takes: "text", help: "Tokens of the whole run: tells its days, GPU-hours and energy.", example: "15T", flag: "--tokens" },
  { name: "gpu_hour_price", takes: "number", help: "What a GPU costs for an hour.", example: "2.5", flag: "--gpu-hour-price" },
  { name: "currency", takes: "text", help: "Currency of that cost.", example: "EUR", flag: "--currency" },
  { name: "failures", takes: "text", help: "How often GPUs fail, and what each failure costs.", example: "mtbf=50000h,restart=10min", flag: "--goodput" },
  { name: "gpu_power_w", takes: "number", help: "Watts that a GPU draws with its share of the node.", example: "1000", flag: "--gpu-power" },
  { name: "pue", takes: "number", help: "Energy of the site over that of the nodes.", example: "1.2", flag: "--pue" },
  { name: "grid_intensity", takes: "number", help: "Grams of CO2 that the grid emits for a kWh.", example: "300", flag: "--grid-intensity" },
];

const FAILURES = [
  { value: "default", hint: "one of a GPU in 50,700 h, as Llama 3 405B saw them" },
  { value: "mtbf=50000h,restart=10min,checkpoint=30s", hint: "mean time between failures of a GPU, and what each costs" },
];

/** Return all fields by name, those of the job first. */
export function allFields(about) {
  const fields = new Map((about.fields ?? []).map((each) => [each.name, each]));
  for (const each of ADDED) if (!fields.has(each.name)) fields.set(each.name, { choices: [], usual: "", example: "", ...each, asExample: Boolean(each.example) });
  return fields;
}

/** Return how the form calls a field. */
export const labelOf = (name) => {
  const spaced = name.replaceAll("_", " ");
  return LABELS[name] ?? spaced[0].toUpperCase() + spaced.slice(1);
};

/** Return a value as one line: of the text of a file, what it builds on. */
export function brief(value) {
  if (Array.isArray(value)) return value.join(", ");
  if (!/^\s*\{|\n| = /.test(value)) return value; // as the server tells a text from a name
  const base = value.match(/^\s*base\s*=\s*"([^"]+)"/m)?.[1] ?? value.match(/"?(?:name|_name_or_path|model_type)"?\s*[:=]\s*"([^"]+)"/)?.[1];
  return base ? `${base}, changed` : "of a file";
}

/** Return what a combobox offers for a field: `{value, hint}`; null where it is another control. */
export function offers(name, about) {
  const plain = (names) => (names ?? []).map((value) => ({ value, hint: "" }));
  if (name === "model") return about.models.map((each) => ({ value: each.name, hint: each.text ?? each.kind ?? "" }));
  if (name === "cluster") return clusters(about);
  if (name === "framework") return plain(about.frameworks);
  if (name === "schedule") return plain(about.schedules);
  if (name === "recipe") return plain(about.recipes);
  if (name === "failures") return FAILURES;
  return null;
}

function clusters(about) {
  const known = new Set(about.clusters.map((each) => each.name));
  const gpus = (about.gpus ?? []).filter((name) => !known.has(name)).map((value) => ({ value, hint: "GPU of a datasheet" }));
  return [...about.clusters.map((each) => ({ value: each.name, hint: each.description ?? "" })), ...gpus];
}
