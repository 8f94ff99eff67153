/** The open runs: one model for all views of a run, read only while one of them is visible. */
import type { Api } from '../api';
import type { Run } from '../schema';
import { follow, isRead } from './follow';
import { Memories } from './memories';
import { RunModel } from './model';

/** Characters of logs and outputs, and bytes of spans, that hidden runs together may keep in memory. */
const UNSEEN = 50_000_000;

interface Open {
  model: RunModel;
  views: number;
  seen: number;
  /** Aborts reading; null while nothing is read. */
  reading: AbortController | null;
  work: Promise<void>;
  /** When it was last visible, in terms of `clock`. */
  last: number;
}

export class Runs {
  private open = new Map<string, Open>();
  private clock = 0;

  /** `memories` holds the view state of each run. */
  constructor(
    private api: Api,
    readonly memories = new Memories()
  ) {}

  /** Return the model of a run, for a view that calls `release` when it is closed. */
  acquire(run: Run): RunModel {
    let open = this.open.get(run.id);
    if (!open) {
      open = { model: new RunModel(run, this.api), views: 0, seen: 0, reading: null, work: Promise.resolve(), last: 0 };
      this.open.set(run.id, open);
    }
    open.views += 1;
    return open.model;
  }

  release(model: RunModel): void {
    const open = this.open.get(model.id);
    if (open && --open.views === 0) {
      open.reading?.abort();
      this.open.delete(model.id);
    }
  }

  /** Note that a view of this run became visible or hidden. */
  see(model: RunModel, isSeen: boolean): void {
    const open = this.open.get(model.id);
    if (!open) {
      return;
    }
    open.seen += isSeen ? 1 : -1;
    open.last = ++this.clock;
    if (open.seen > 0) {
      this.read(open);
    } else {
      open.reading?.abort();
      open.reading = null;
      this.lighten();
    }
  }

  private read(open: Open): void {
    if (open.reading || isRead(open.model)) {
      return;
    }
    const reading = new AbortController();
    open.reading = reading;
    // One after the other: the last reader may still be processing what it read.
    open.work = open.work
      .then(() => follow(open.model, this.api, reading.signal))
      .catch(error => {
        console.error(error); // the next view that becomes visible tries again
      })
      .finally(() => {
        open.reading = open.reading === reading ? null : open.reading;
      });
  }

  /** Drop the records of complete runs that have been hidden for longest. */
  private lighten(): void {
    const unseen = [...this.open.values()].filter(open => open.seen === 0);
    unseen.sort((a, b) => b.last - a.last);
    let weight = 0;
    for (const { model } of unseen) {
      weight += model.weight;
      if (weight > UNSEEN && model.isComplete) {
        model.forget();
      }
    }
  }
}
