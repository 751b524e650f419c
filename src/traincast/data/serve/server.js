// Asks the server: JSON in, JSON out; of questions of one kind only the newest is answered.

/** What the server says is wrong: `kind`, `what`, `where`, `message`, `hint`, and `over` where a job does not fit. */
export class Refused extends Error {
  constructor(status, error = {}) {
    super(error.message || error.what || `The server answered ${status}.`);
    Object.assign(this, { kind: "error", what: "", where: "", hint: "", remedies: [], ...error, status });
  }
}

/** The server does not answer at all. */
export class Unreachable extends Error {
  constructor() { super("The server does not answer. Start it again with: traincast serve"); }
}

const isNewer = (error) => error?.name === "AbortError" || error?.kind === "superseded";

export class Server {
  constructor() {
    // Not randomUUID: browsers have it on this machine's own address alone.
    this.page = Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
    this.running = new Map();
  }

  headers(more = {}) { return { "X-Traincast-Tab": this.page, ...more }; }

  /** GET a path. */
  get(path) { return this.fetch(path, { headers: this.headers() }); }

  /**
   * POST a body and return the answer, or null where a newer question of the same `slot` came meanwhile.
   * Throws `Refused` or `Unreachable`.
   */
  async ask(path, body, { slot = null } = {}) {
    const abort = new AbortController();
    if (slot) { this.running.get(slot)?.abort(); this.running.set(slot, abort); }
    try {
      const headers = this.headers({ "Content-Type": "application/json" });
      return await this.fetch(path, { method: "POST", headers, body: JSON.stringify(body), signal: abort.signal });
    } catch (error) {
      if (isNewer(error)) return null;
      throw error;
    } finally {
      if (slot && this.running.get(slot) === abort) this.running.delete(slot);
    }
  }

  /** Forget the question of a slot that is not answered yet. */
  drop(slot) { this.running.get(slot)?.abort(); this.running.delete(slot); }

  /** POST files as a form of parts, each with its path as a label. */
  upload(path, files) {
    const form = new FormData();
    for (const { file, label } of files) form.append("files", file, label ?? file.name);
    return this.fetch(path, { method: "POST", headers: this.headers(), body: form });
  }

  async fetch(path, options) {
    let answer;
    try {
      answer = await fetch(path, { credentials: "same-origin", cache: "no-store", ...options });
    } catch (error) {
      if (isNewer(error)) throw error;
      throw new Unreachable();
    }
    const isJson = (answer.headers.get("Content-Type") ?? "").includes("json");
    if (answer.ok) return isJson ? answer.json() : answer.arrayBuffer();
    throw new Refused(answer.status, isJson ? (await answer.json()).error ?? {} : {});
  }

  /**
   * Follow a task: `handlers` has `progress`, `points`, `done`, `failed`, each given its data.
   * Returns a function that stops listening.
   */
  follow(task, handlers) {
    const source = new EventSource(`/api/tasks/${encodeURIComponent(task)}/events`);
    let over = false;
    const stop = () => { over = true; source.close(); };
    for (const name of ["progress", "points", "done", "failed"]) {
      source.addEventListener(name, (event) => {
        if (over) return;
        if (name === "done" || name === "failed") stop();
        handlers[name]?.(JSON.parse(event.data));
      });
    }
    source.addEventListener("error", () => {
      if (over || source.readyState !== EventSource.CLOSED) return;
      stop();
      handlers.failed?.({ error: { message: new Unreachable().message } });
    });
    return stop;
  }

  /** Stop a task for good: its worker is ended. */
  cancel(task) {
    return this.fetch(`/api/tasks/${encodeURIComponent(task)}`, { method: "DELETE", headers: this.headers() });
  }
}
