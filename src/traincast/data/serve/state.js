// The one state of the page: a JSON value, kept in the fragment of the URL, with what was before it.

export const MOST_SCENARIOS = 4;
export const FIRST_JOB = {
  model: "llama3-70b", cluster: "h100", gpus: "512", seq_length: "8k", global_batch: "1024", tp: "8", pp: "4",
};
export const EMPTY = { view: "forecast", scenarios: [{ name: "A", job: FIRST_JOB }], at: 0, plan: {}, look: {} };

const MOST_REMEMBERED = 200;
const LONG = 700; // characters of JSON above which a URL is deflated
const DEFLATED = "z.";

const base64 = (bytes) => {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replace(/=+$/, "");
};
const unbase64 = (text) =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (character) => character.charCodeAt(0));
const through = async (bytes, stream) =>
  new Uint8Array(await new Response(new Blob([bytes]).stream().pipeThrough(stream)).arrayBuffer());

/** Write a state as the fragment of a URL: base64url of its JSON, deflated where that is long. */
export async function encode(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  if (bytes.length < LONG || !window.CompressionStream) return base64(bytes);
  return DEFLATED + base64(await through(bytes, new CompressionStream("deflate-raw")));
}

/** Read what `encode` wrote; null where it is nothing of the kind. */
export async function decode(fragment) {
  try {
    const deflated = fragment.startsWith(DEFLATED);
    const bytes = unbase64(deflated ? fragment.slice(DEFLATED.length) : fragment);
    const plain = deflated ? await through(bytes, new DecompressionStream("deflate-raw")) : bytes;
    return sound(JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(plain)));
  } catch {
    return null;
  }
}

const isRecord = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const isOpen = (value) => value === null || value === undefined || value === "" || (Array.isArray(value) && !value.length);

/** Return a value as one would type it; a list of changes stays a list, as each may have commas. */
function asTyped(field, value) {
  if (Array.isArray(value)) return field === "what_if" ? value.map(String) : value.join(",");
  if (typeof value === "boolean") return value ? "on" : "off";
  return isRecord(value) ? Object.entries(value).map(([key, each]) => `${key}=${each}`).join(",") : String(value);
}

/** Return a job with every value as text, as one would type it; what is empty is left out. */
export function jobAsTyped(job) {
  const kept = Object.entries(job ?? {}).filter(([, value]) => !isOpen(value));
  return Object.fromEntries(kept.map(([field, value]) => [field, asTyped(field, value)]));
}

/** Return a state that the page can hold whatever came from outside; null where it is none. */
export function sound(found) {
  if (!isRecord(found) || !(Array.isArray(found.scenarios) || isRecord(found.look))) return null;
  const scenarios = (found.scenarios ?? EMPTY.scenarios).filter((each) => isRecord(each) && isRecord(each.job)).slice(0, MOST_SCENARIOS)
    .map((each, at) => ({ name: String(each.name ?? letter(at)).slice(0, 60), job: jobAsTyped(each.job) }));
  if (!scenarios.length) return null;
  const at = Number.isInteger(found.at) ? Math.min(Math.max(found.at, 0), scenarios.length - 1) : 0;
  return {
    view: String(found.view ?? "forecast"), scenarios, at,
    plan: isRecord(found.plan) ? found.plan : {}, look: isRecord(found.look) ? found.look : {},
  };
}

export const letter = (at) => "ABCDEFGH"[at] ?? `S${at + 1}`;

/** Holds the state, what was before it and what was undone; tells those who listen. */
export class State {
  constructor(value = EMPTY) {
    this.value = value;
    this.past = [];
    this.future = [];
    this.listeners = new Set();
    this.merging = null;
  }

  /** Change keys of the state; changes with the same `merge` word one after another are undone together. */
  update(patch, { undoable = true, merge = null } = {}) {
    const next = { ...this.value, ...patch };
    if (JSON.stringify(next) === JSON.stringify(this.value)) return;
    if (undoable && !(merge && merge === this.merging)) this.past.push(this.value);
    if (this.past.length > MOST_REMEMBERED) this.past.shift();
    if (undoable) { this.future = []; this.merging = merge; }
    this.set(next);
  }

  undo() { this.step(this.past, this.future); }

  redo() { this.step(this.future, this.past); }

  step(from, to) {
    if (!from.length) return;
    to.push(this.value);
    this.merging = null;
    this.set({ ...from.pop(), view: this.value.view });
  }

  set(value) {
    const before = this.value;
    this.value = value;
    for (const listener of this.listeners) listener(value, before);
  }

  get scenario() { return this.value.scenarios[this.value.at]; }
}
