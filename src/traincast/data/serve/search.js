// Long work on the server: begun, followed, and really stopped; of one kind there is one at a time.

/** Tells `start`, `points`, `progress`, `done`, `failed` and `cancelled` of the work that was begun last. */
export class Search {
  constructor(server, tell) { Object.assign(this, { server, tell, task: null, stop: null, current: null }); }

  get running() { return this.current !== null; }

  /** Begin a plan. */
  begin(question) { return this.run(() => this.server.ask("/api/plan", question)); }

  /** Begin work whose task `ask()` returns; what ran before is ended. */
  async run(ask) {
    this.end();
    const mine = (this.current = {});
    this.tell.start?.();
    try {
      const { task } = await ask();
      if (mine !== this.current) return void this.server.cancel(task);
      this.task = task;
      this.stop = this.server.follow(task, {
        points: (data) => this.tell.points?.(data),
        progress: (data) => this.tell.progress?.(data),
        done: (data) => this.over(mine, () => this.tell.done(data.answer ?? data, task)),
        failed: (data) => this.over(mine, () => this.tell.failed(data.error ?? data)),
      });
    } catch (error) {
      this.over(mine, () => this.tell.failed(error));
    }
  }

  over(mine, then) {
    if (mine !== this.current) return;
    this.forget();
    then();
  }

  forget() {
    this.stop?.();
    Object.assign(this, { task: null, stop: null, current: null });
  }

  /** End what runs, its worker with it, without a word. */
  end() {
    const { task } = this;
    this.forget();
    if (task) this.server.cancel(task).catch(() => {});
  }

  /** Stop because a person wants it. */
  cancel() {
    if (!this.running) return;
    this.end();
    this.tell.cancelled();
  }
}
