/** Where the time of a run went: a diagnosis, and tables of ranks, stragglers, collectives and memory. */
import { Widget } from '@lumino/widgets';

import { rankClass } from '../ranks';
import type { RunModel } from '../run/model';
import type { Kind, Profile, RankMemory, RankTimes, Straggler } from '../schema';
import { percent } from '../timeline/amounts';
import { importsOf, loopFacts, meaning, partsOf, type ProfilePart } from '../timeline/phases';
import { droppedWords } from '../timeline/phrases';
import { memoryFacts, memoryTable } from '../timeline/rankmemory';
import { kindTable, PARTS, rankTable, stragglerTable, type Column } from '../timeline/tables';
import { trans } from '../translation';
import { duration, grouped } from '../words';
import { h, setChildren, setText } from './dom';
import { SortTable } from './sorttable';

/** Microseconds; a shorter run gets no diagnosis (MIN_WALL_US in analysis/profile/diagnosis.py). */
const SHORT = 100_000;

export class ProfileTab extends Widget {
  private sentence = h('div', 'rr-diagnosis');
  private facts = h('div', 'rr-facts');
  private phases = h('div', 'rr-chips rr-phases', { role: 'group', 'aria-label': trans.__('part of the run'), hidden: true });
  private shown: Profile | null = null;
  /** Whether there were spans when `shown` was displayed: a stored profile may be loaded before them. */
  private hadSpans = false;
  private part: ProfilePart | null = null;
  /** The part that the reader chose; null for the default: the loop, or the whole run. */
  private chosen: ProfilePart['key'] | null = null;
  private ranks = new SortTable<RankTimes>({
    title: trans.__('Time of each rank'),
    all: n => trans._n('show all %2 rank', 'show all %2 ranks', n, grouped(n)),
    copied: n => trans._n('copied %2 rank', 'copied %2 ranks', n, grouped(n)),
    dress: colourRank,
    picture: row => this.stack(row),
    pictures: trans.__('shares of the time')
  });
  private kinds = new SortTable<Kind>({
    title: trans.__('Collectives'),
    all: n => trans._n('show all %2 collective', 'show all %2 collectives', n, grouped(n)),
    copied: n => trans._n('copied %2 collective', 'copied %2 collectives', n, grouped(n))
  });
  private stragglers = new SortTable<Straggler>({
    title: trans.__('Ranks that the others waited for'),
    all: n => trans._n('show all %2 straggler', 'show all %2 stragglers', n, grouped(n)),
    copied: n => trans._n('copied %2 straggler', 'copied %2 stragglers', n, grouped(n)),
    dress: colourRank
  });
  private memory = new SortTable<RankMemory>({
    title: trans.__('Memory of each rank'),
    all: n => trans._n('show all %2 rank', 'show all %2 ranks', n, grouped(n)),
    copied: n => trans._n('copied %2 rank', 'copied %2 ranks', n, grouped(n)),
    dress: colourRank
  });

  constructor(private model: RunModel) {
    super();
    this.addClass('rr-profile');
    this.node.append(this.sentence, this.phases, this.facts, this.ranks.node, this.stragglers.node, this.kinds.node, this.memory.node);
    this.display(null);
    model.profile.changed.connect(this.refresh, this);
  }

  dispose(): void {
    this.model.profile.changed.disconnect(this.refresh, this);
    super.dispose();
  }

  /** Show the current profile; do nothing while hidden. */
  refresh(): void {
    if (!this.isVisible) {
      return;
    }
    const { profile, isComplete, spans } = this.model;
    const hasSpans = spans.count > 0;
    profile.refresh();
    this.node.dataset.ready = String(isComplete && profile.isUpToDate);
    if (profile.value !== this.shown || hasSpans !== this.hadSpans) {
      this.shown = profile.value;
      this.hadSpans = hasSpans;
      this.display(profile.value);
    }
    this.say();
  }

  protected onAfterShow(): void {
    this.refresh();
  }

  protected onAfterAttach(): void {
    this.refresh();
  }

  private display(profile: Profile | null): void {
    [this.ranks, this.stragglers, this.kinds, this.memory].forEach(({ node }) => (node.hidden = profile === null));
    this.part = null;
    this.phases.hidden = true;
    if (profile) {
      const parts = partsOf(profile);
      const part = parts.find(({ key }) => key === this.chosen) ?? parts[0];
      this.part = part;
      this.phases.hidden = parts.length < 2;
      this.offer(parts, part);
      // Without spans, the times would come from statuses alone, and mean nothing.
      this.ranks.show({ ...rankTable(part.rows), rows: this.model.spans.count ? part.rows.ranks : [] });
      this.stragglers.show(stragglerTable(part.rows));
      this.kinds.show(kindTable(part.rows));
      this.memory.show(memoryTable(profile.memory ?? []));
    }
  }

  /** Show a button for each part; existing ones are reused, as one of them may have the focus. */
  private offer(parts: readonly ProfilePart[], shown: ProfilePart): void {
    const known = new Map([...this.phases.children].map(node => [(node as HTMLElement).dataset.part, node as HTMLElement]));
    const buttons = parts.map(({ key, title, rows }) => {
      const button = known.get(key) ?? h(
        'button', 'rr-chip', { 'data-part': key, title: meaning(key), onclick: () => this.choose(key) },
        h('span', ''), ' ', h('span', 'rr-phase-time')
      );
      const [name, time] = button.querySelectorAll<HTMLElement>('span');
      setText(name, title);
      setText(time, duration(rows.wall));
      button.setAttribute('aria-pressed', String(key === shown.key));
      return button;
    });
    setChildren(this.phases, buttons);
  }

  private choose(key: ProfilePart['key']): void {
    this.chosen = key;
    this.display(this.shown);
    this.say();
  }

  private say(): void {
    const { model } = this;
    const profile = model.profile.value;
    const words = this.words(profile);
    this.sentence.classList.toggle('rr-undiagnosed', !profile?.diagnosis);
    setText(this.sentence, words);
    const spans = model.spans.count;
    const { part } = this;
    const collectives = part?.rows.kinds.reduce((sum, { calls }) => sum + calls, 0) ?? 0;
    const isLoop = part?.key === 'loop';
    const facts = profile && part && spans
      ? [
          ...(isLoop && profile.loop ? loopFacts(profile.loop) : [duration(part.rows.wall), importsOf(profile, part.key)]),
          ...(part.key === 'run' ? [trans._n('%2 span', '%2 spans', spans, grouped(spans))] : []),
          trans._n('%2 collective', '%2 collectives', collectives, grouped(collectives)),
          ...memoryFacts(profile.memory ?? [], profile.loop),
          ...(model.isComplete ? [] : [trans.__('still running')]),
          droppedWords(model.spans.dropped),
          model.profile.trouble && trans.__('not up to date: %1; retrying', model.profile.trouble)
        ]
      : [droppedWords(model.spans.dropped)];
    this.facts.textContent = facts.filter(Boolean).join(' · ');
  }

  private words(profile: Profile | null): string {
    const { isComplete, spans, run } = this.model;
    const { trouble } = this.model.profile;
    if (!profile && trouble) {
      return trans.__('The profile cannot be shown now: %1; retrying.', trouble);
    }
    if (!profile || (spans.count === 0 && !isComplete)) {
      return isComplete || !this.model.isLive
        ? trans.__('Reading the record …')
        : trans.__('No spans yet: they appear when the first statement ends.');
    }
    if (spans.count === 0) {
      return trans.__(
        'No spans in this record, so nothing is known of where its time went: it was written by an older Rankroom, or its ranks ended before they could report.'
      );
    }
    if (profile.diagnosis) {
      return isComplete ? profile.diagnosis : trans.__('so far: %1', profile.diagnosis);
    }
    if (profile.kinds.length === 0) {
      return trans.__('No collectives in this run, so no rank waited for another.');
    }
    if (run.ranks.length < 2) {
      return trans.__('No diagnosis: only one rank took part in this run.');
    }
    return profile.wall < SHORT
      ? trans.__('No diagnosis: the run was too short, less than 0.1 s.')
      : trans.__('No diagnosis: no two ranks took part in the same collective.');
  }

  /** Return a rank's time as a bar, part after part. */
  private stack(row: RankTimes): HTMLElement {
    const wall = this.part?.rows.wall || 1;
    const parts = PARTS().filter(([part]) => row[part] > 0);
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
