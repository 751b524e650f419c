// The pipeline's timeline in the view Forecast: drawn when it is seen and nothing changes.

import { button, card, el, empty, put } from "./ui.js";

export class TimelineCard {
  constructor(app) {
    this.app = app;
    this.place = el("div", { class: "timeline-place" }, el("p", { class: "hint" }, "Every operation of the step, rank by rank."));
    this.open = button("Draw the timeline", () => { this.wanted = true; this.open.hidden = true; this.draw(); }, { class: "small" });
    this.root = card("Timeline of the step", { wide: true, id: "timeline", tools: [this.open] }, this.place);
    this.wanted = false;
  }

  /** Take the job whose timeline it is about; it is drawn anew where it was drawn before. */
  ask(job) {
    if (JSON.stringify(job) === JSON.stringify(this.job)) return;
    this.job = job;
    return this.wanted ? this.draw() : null;
  }

  hide() {}

  async draw() {
    const { job } = this;
    if (!job) return;
    try {
      if (!this.view) {
        const { StepView } = await import("./timeline.js");
        this.view = new StepView(this.app);
        put(this.place, this.view.root);
      }
      await this.view.show(() => this.app.server.ask("/api/timeline", { job }, { slot: "timeline" }));
    } catch (error) {
      put(this.place, empty("The timeline could not be drawn.", error.message));
      this.view = null;
    }
  }
}
