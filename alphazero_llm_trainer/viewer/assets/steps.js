// The bar that steps through the simulations.

class Steps {
  constructor(model, changed) {
    this.model = model;
    this.changed = changed;
    this.playing = null;
    this.slider = element("slider");
    this.slider.max = String(model.steps);
    this.slider.oninput = () => this.go(Number(this.slider.value));
    element("first").onclick = () => this.go(0);
    element("previous").onclick = () => this.go(this.model.at - 1);
    element("next").onclick = () => this.go(this.model.at + 1);
    element("last").onclick = () => this.go(this.model.steps);
    element("play").onclick = () => this.toggle();
    this.say();
  }

  go(step) {
    this.model.go(step);
    this.say();
    this.changed();
    if (this.model.done) this.pause();
  }

  toggle() {
    if (this.playing !== null) { this.pause(); return; }
    if (this.model.done) this.go(0);
    element("play").textContent = "⏸";
    element("play").setAttribute("aria-label", "Pause");
    let before = performance.now(), owed = 0;
    const tick = (now) => {
      owed += ((now - before) / 1000) * Number(element("speed").value);
      before = now;
      if (owed >= 1) {
        const steps = Math.floor(owed);
        owed -= steps;
        this.go(this.model.at + steps);
      }
      if (this.playing !== null) this.playing = requestAnimationFrame(tick);
    };
    this.playing = requestAnimationFrame(tick);
  }

  pause() {
    if (this.playing !== null) cancelAnimationFrame(this.playing);
    this.playing = null;
    element("play").textContent = "▶";
    element("play").setAttribute("aria-label", "Play");
  }

  say() {
    const { model } = this;
    this.slider.value = String(model.at);
    const unit = model.replays ? "simulation" : "node";
    let text = `${unit} ${model.at} / ${model.steps}`;
    if (model.leaf !== null && model.replays) {
      const rewards = model.rewards();
      text += ` · leaf ${model.leaf} · backed up ${rewards.slice(0, 4).map((reward) => reward.toFixed(2)).join(", ")}`;
      if (rewards.length > 4) text += `, … (${rewards.length})`;
    }
    if (!model.replays) text += " · no history in this journal";
    this.slider.setAttribute("aria-valuetext", text);
    element("step-said").textContent = text;
    element("step-said").title = model.replays ? text : "The journal has no history of the simulations: nodes appear in the order they were made, with their final numbers.";
    element("previous").disabled = element("first").disabled = model.at === 0;
    element("next").disabled = element("last").disabled = model.done;
  }
}
