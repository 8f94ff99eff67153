/** The form that starts ranks: made from a site's profile, checked by the server while it is filled in. */
import { Debouncer } from '@lumino/polling';

import { ApiError } from '../api';
import type { SiteChoice } from '../cluster_status';
import { trans } from '../translation';
import { h, setText } from '../view/dom';
import { setUnderWay, stepButton } from '../view/step';
import { type Clusters, message } from './clusters';
import { Fields } from './fields';

/** Delay between the last key and the server's check of the form. */
const PAUSE_MS = 300;

export class StartForm {
  readonly node: HTMLFormElement;
  private sites: SiteChoice[] = [];
  private fields: Fields | null = null;
  /** The site from which the fields were made, as JSON. */
  private profile = '';
  private place = h('select', 'rr-input', { 'aria-label': trans.__('where'), onchange: () => this.choose(this.place.value) });
  private about = h('div', 'rr-about');
  private box = h('div', '');
  private wrong = h('div', 'rr-said-wrong', { role: 'alert', hidden: true });
  private start = h('button', 'rr-button rr-primary', { type: 'submit' }, trans.__('Start ranks'));
  private show = stepButton(trans.__('Show script'), trans.__('the job script that would be submitted'), () => this.showScript());
  private script = h('pre', 'rr-script', { tabindex: '0', 'aria-label': trans.__('job script'), hidden: true });
  private checking = new Debouncer(() => this.check(), PAUSE_MS);
  private checks = 0;

  constructor(
    private clusters: Clusters,
    private started: (name: string) => void
  ) {
    this.show.type = 'button';
    this.node = h(
      'form', 'rr-form', { 'aria-label': trans.__('start ranks'), novalidate: true, onsubmit: (event: Event) => void this.submit(event) },
      h('label', 'rr-field', {}, h('span', '', {}, trans.__('Where')), this.place), this.about,
      this.box, this.wrong, h('div', 'rr-actions', {}, this.start, this.show), this.script
    );
  }

  /** Fetch the sites, and show the form of one: the one shown before, else `preferred`, else the first. */
  async load(preferred: string): Promise<void> {
    try {
      this.sites = await this.clusters.api.sites();
    } catch (error) {
      this.complain(message(error));
      return;
    }
    this.complain('');
    const before = this.place.value;
    this.place.replaceChildren(...this.sites.map(site => h('option', '', { value: site.name }, site.description || site.name)));
    const chosen = [before, preferred].find(name => this.sites.some(site => site.name === name)) ?? this.sites[0]?.name ?? '';
    this.place.value = chosen;
    if (!this.fields || chosen !== before) {
      this.choose(chosen);
    } else if (JSON.stringify(this.site) !== this.profile) {
      const typed = this.fields.request;
      this.choose(chosen);
      this.fields?.fill(typed);
    }
  }

  dispose(): void {
    this.checking.dispose();
  }

  private get site(): SiteChoice | undefined {
    return this.sites.find(site => site.name === this.place.value);
  }

  private choose(name: string): void {
    const site = this.sites.find(each => each.name === name);
    this.complain(site?.wrong ?? '');
    this.profile = JSON.stringify(site);
    this.script.hidden = true;
    setText(this.show, trans.__('Show script'));
    if (!site || site.wrong) {
      this.fields = null;
      this.box.replaceChildren();
      setText(this.about, '');
      setUnderWay(this.start, true);
      return;
    }
    this.fields = new Fields(site, () => this.change());
    this.box.replaceChildren(this.fields.node);
    setUnderWay(this.start, false);
    const isHere = site.scheduler === 'none';
    setText(this.start, isHere ? trans.__('Start ranks') : trans.__('Submit job'));
    this.show.hidden = isHere;
    const scheduler = site.scheduler === 'pbs' ? 'PBS' : 'Slurm';
    setText(this.about, isHere ? '' : trans.__('%1: %2 on %3', site.name, scheduler, site.login || trans.__('this machine')));
    this.about.hidden = isHere;
  }

  private change(): void {
    this.complain('');
    // A newer key replaces the pending check of an older one.
    void this.checking.invoke().catch(() => undefined);
  }

  /** Ask the server what is wrong before anything is started; return whether nothing is. */
  private async check(): Promise<boolean> {
    const { site, fields } = this;
    if (!site || !fields) {
      return false;
    }
    const check = ++this.checks;
    try {
      const { script, errors } = await this.clusters.api.dryRun(site.name, fields.request);
      if (fields !== this.fields) {
        return false;
      }
      // A later request may have been answered first.
      if (check === this.checks) {
        const isAtFields = fields.complain(errors);
        this.complain(isAtFields ? '' : Object.values(errors).join('; '));
        setText(this.script, script);
      }
      return Object.keys(errors).length === 0;
    } catch (error) {
      if (check === this.checks) {
        this.complain(message(error));
      }
      return false;
    }
  }

  private async showScript(): Promise<void> {
    if (!this.script.hidden) {
      this.script.hidden = true;
    } else if (await this.check()) {
      this.script.hidden = false;
    } else {
      this.fields?.focusWrong();
    }
    setText(this.show, this.script.hidden ? trans.__('Show script') : trans.__('Hide script'));
  }

  private async submit(event: Event): Promise<void> {
    event.preventDefault();
    const { site, fields } = this;
    if (!site || !fields || this.start.getAttribute('aria-disabled') === 'true') {
      return;
    }
    setUnderWay(this.start, true);
    // The result of a pending check would be outdated.
    void this.checking.stop();
    this.checks += 1;
    try {
      const name = await this.clusters.start(site.name, fields.request);
      fields.complain({});
      this.complain('');
      this.started(name);
    } catch (error) {
      const errors = error instanceof ApiError ? error.errors : {};
      const isAtFields = fields.complain(errors) && Object.keys(errors).length > 0;
      this.complain(isAtFields ? '' : message(error));
      fields.focusWrong();
    } finally {
      setUnderWay(this.start, false);
    }
  }

  private complain(sentence: string): void {
    setText(this.wrong, sentence);
    this.wrong.hidden = sentence === '';
  }
}
