/** Where the time of a run went: a sentence, and tables of ranks, collectives and stragglers. */
import { Widget } from '@lumino/widgets';

import { rankClass } from '../ranks';
import type { RunModel } from '../run/model';
import type { Kind, Profile, RankTimes, Straggler } from '../schema';
import { percent } from '../timeline/amounts';
import { droppedWords } from '../timeline/phrases';
import { kindTable, PARTS, rankTable, stragglerTable, type Column } from '../timeline/tables';
import { count, duration } from '../words';
import { h } from './dom';
import { SortTable } from './sorttable';

const READING = 'Reading the record …';
const NOT_THERE = (why: string): string => `The profile cannot be shown now: ${why}; trying again.`;
const STALE = (why: string): string => `not up to date: ${why}; trying again`;
const NOT_YET = 'No spans yet: they come with the first statement that ends.';
const NO_SPANS =
  'No spans in this record, so nothing is known of where its time went: it was written by an older Rankroom,' +
  ' or its ranks ended before they could report.';
const NO_COLLECTIVES = 'No collectives in this run: its ranks never met, so none waited for another.';
const ALONE = 'No diagnosis: only one rank took part in this run.';
const NOTHING = 'No diagnosis: no two ranks took part in the same collective.';

export class ProfileTab extends Widget {
  private sentence = h('div', 'rr-diagnosis');
  private facts = h('div', 'rr-facts');
  private shown: Profile | null = null;
  private ranks = new SortTable<RankTimes>({
    title: 'Time of each rank',
    dress: colourRank,
    picture: row => this.stack(row),
    pictures: 'shares of the time'
  });
  private kinds = new SortTable<Kind>({ title: 'Collectives' });
  private stragglers = new SortTable<Straggler>({ title: 'Who the others waited for', dress: colourRank });

  constructor(private model: RunModel) {
    super();
    this.addClass('rr-profile');
    this.node.append(this.sentence, this.facts, this.ranks.node, this.stragglers.node, this.kinds.node);
    this.display(null);
    model.profile.changed.connect(this.refresh, this);
  }

  dispose(): void {
    this.model.profile.changed.disconnect(this.refresh, this);
    super.dispose();
  }

  /** Show how the run stands now; nothing is done while nobody sees it. */
  refresh(): void {
    if (!this.isVisible) {
      return;
    }
    const { profile, isComplete } = this.model;
    profile.refresh();
    this.node.dataset.ready = String(isComplete && profile.isUpToDate);
    this.say();
    if (profile.value !== this.shown) {
      this.shown = profile.value;
      this.display(profile.value);
    }
  }

  protected onAfterShow(): void {
    this.refresh();
  }

  protected onAfterAttach(): void {
    this.refresh();
  }

  private display(profile: Profile | null): void {
    [this.ranks, this.stragglers, this.kinds].forEach(({ node }) => (node.hidden = profile === null));
    if (profile) {
      // Without spans a table of statuses only would look like knowledge.
      this.ranks.show({ ...rankTable(profile), rows: this.model.spans.count ? profile.ranks : [] });
      this.stragglers.show(stragglerTable(profile));
      this.kinds.show(kindTable(profile));
    }
  }

  private say(): void {
    const { model } = this;
    const profile = model.profile.value;
    const words = this.words(profile);
    this.sentence.classList.toggle('rr-empty', !profile?.diagnosis);
    if (this.sentence.textContent !== words) {
      this.sentence.textContent = words;
    }
    const facts = profile && model.spans.count
      ? [
          `cell ${duration(profile.wall)}`,
          count(model.spans.count, 'span'),
          count(profile.kinds.reduce((sum, { calls }) => sum + calls, 0), 'collective'),
          ...(model.isComplete ? [] : ['the run goes on']),
          droppedWords(model.spans.dropped),
          model.profile.trouble && STALE(model.profile.trouble)
        ]
      : [droppedWords(model.spans.dropped)];
    this.facts.textContent = facts.filter(Boolean).join(' · ');
  }

  private words(profile: Profile | null): string {
    const { isComplete, spans, run } = this.model;
    const { trouble } = this.model.profile;
    if (!profile && trouble) {
      return NOT_THERE(trouble);
    }
    if (!profile || (spans.count === 0 && !isComplete)) {
      return isComplete || !this.model.isLive ? READING : NOT_YET;
    }
    if (spans.count === 0) {
      return NO_SPANS;
    }
    if (profile.diagnosis) {
      return `${isComplete ? '' : 'so far: '}${profile.diagnosis}`;
    }
    return profile.kinds.length === 0 ? NO_COLLECTIVES : run.ranks.length < 2 ? ALONE : NOTHING;
  }

  /** A rank's time as a bar, part after part. */
  private stack(row: RankTimes): HTMLElement {
    const wall = this.shown?.wall || 1;
    const parts = PARTS.filter(([part]) => row[part] > 0);
    const words = parts.map(([part, head]) => `${head} ${percent(row[part], wall)}`);
    return h(
      'div',
      'rr-stack',
      { role: 'img', 'aria-label': words.join(', ') },
      ...parts.map(([part], i) =>
        h('span', `rr-part-${part}`, { title: words[i], style: `flex-grow: ${row[part] / wall}` })
      )
    );
  }
}

function colourRank(cell: HTMLElement, { key }: Column<never>, { rank }: { rank: number }): void {
  if (key === 'rank') {
    cell.classList.add(rankClass(rank));
  }
}
