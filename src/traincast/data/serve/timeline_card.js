// The pipeline's timeline in the view Forecast: drawn once it is seen and nothing changes.

import { card, el, empty, put } from "./ui.js";

export class TimelineCard {
  constructor(app) {
    this.app = app;
    this.place = el("div", { class: "timeline-place" }, el("p", { class: "hint" }, "Every operation of the step, rank by rank."));
    this.root = card("Timeline of the step", { wide: true, id: "timeline" }, this.place);
    this.seen = false;
    new IntersectionObserver(([entry]) => this.see(entry.isIntersecting), { rootMargin: "0px 0px -60px" }).observe(this.root);
  }

  /** Take the job whose timeline it is about, once nothing changes. */
  ask(job) {
    this.job = job;
    return this.drawWhereSeen();
  }

  see(seen) {
    this.seen = seen;
    return this.drawWhereSeen();
  }

  async drawWhereSeen() {
    const { job } = this;
    const key = JSON.stringify(job);
    if (!this.seen || !job || key === this.drawn) return;
    this.drawn = key;
    this.place.style.minHeight = `${this.place.offsetHeight}px`; // what comes after it stays where it is
    try {
      await this.draw(job);
    } catch (error) {
      put(this.place, empty("The timeline could not be drawn.", error.message));
      this.view = null;
      this.drawn = null;
    }
    if (this.drawn === key) this.place.style.minHeight = "";
  }

  async draw(job) {
    if (!this.view) {
      const { StepView } = await import("./timeline.js");
      this.view ??= new StepView(this.app);
      put(this.place, this.view.root);
    }
    await this.view.show(() => this.app.server.ask("/api/timeline", { job }, { slot: "timeline" }));
  }
}
