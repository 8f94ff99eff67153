/** Carry out what the teacher offers to a learner; nothing happens without the learner's click. */
import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import { type INotebookTracker, NotebookActions, type NotebookPanel } from '@jupyterlab/notebook';

import { ApiError } from '../api';
import type { ClustersApi } from '../api/clusters';
import { codeCell } from '../sidebar/attach';
import { insertCell } from '../sidebar/insert';
import { trans } from '../translation';
import type { Lesson, Message, Offer } from '../workshop_answers';
import type { Seat } from './seat';
import { catchUpSource } from './words';

/** The cluster that all lessons share, as notebook/course_ranks.py names it. */
const COURSE = 'course';
/** The HTTP status for a cluster that does not exist. */
const GONE = 410;

export class Offers {
  constructor(
    private app: JupyterFrontEnd,
    private notebooks: INotebookTracker | null,
    private seat: Seat,
    private clusters: ClustersApi
  ) {}

  /** Insert the offered cell below the active one, without running it. */
  async insert({ source = '' }: Message): Promise<void> {
    await insertCell(this.notebooks, codeCell(source), source);
  }

  /** Do what is offered, and close the offer if that succeeds. Throws an Error that says what is wrong. */
  async take(offer: Offer): Promise<void> {
    const { lesson } = offer;
    if (!lesson) {
      throw new Error(trans.__('Begin a lesson first: run its first cell, which contains %1 and the lesson’s number.', '%course'));
    }
    const isDone = offer.what === 'catch up' ? await this.catchUp(offer) : await this.reset(lesson);
    if (isDone) {
      await this.seat.close(offer, true);
    }
  }

  /** Insert the cell that catches up into the learner's notebook, and run it; return false without a notebook. */
  private async catchUp(offer: Offer): Promise<boolean> {
    const source = catchUpSource(offer);
    const panel = await insertCell(this.notebooks, codeCell(source), source);
    if (!panel) {
      return false;
    }
    const { content } = panel;
    const cell = content.activeCell;
    await panel.sessionContext.ready;
    // The learner may have clicked another cell meanwhile, or removed this one.
    const index = content.widgets.findIndex(each => each === cell);
    if (index < 0) {
      return false;
    }
    content.deselectAll();
    content.activeCellIndex = index;
    // Not awaited: the cell shows its result.
    void NotebookActions.run(content, panel.sessionContext);
    return true;
  }

  /** Rename the lesson's notebook, put a fresh one in its place, and restart the course's ranks. */
  private async reset(lesson: Lesson): Promise<boolean> {
    const panel = this.notebookOf(lesson);
    if (!panel) {
      throw new Error(trans.__('Open your notebook %1 first: it is kept under another name.', lesson.file));
    }
    const { path } = panel.context;
    await panel.context.save();
    await panel.sessionContext.shutdown();
    // All its views, as the next one to open would show what another still holds.
    this.notebooks?.filter(({ context }) => context.path === path).forEach(each => each.close());
    try {
      // Without the name of a drive, which some extensions put before the path.
      const local = this.app.serviceManager.contents.localPath(path);
      Notification.info(await this.seat.api.reset(local), { autoClose: 10_000 });
      await this.restart();
    } finally {
      await this.app.commands.execute('docmanager:open', { path });
    }
    return true;
  }

  private async restart(): Promise<void> {
    try {
      await this.clusters.act(COURSE, 'restart');
    } catch (error) {
      // There are no ranks to restart: the lesson's first cell starts some.
      if (!(error instanceof ApiError && error.status === GONE)) {
        throw error;
      }
    }
  }

  private notebookOf({ file }: Lesson): NotebookPanel | undefined {
    const { contents } = this.app.serviceManager;
    const isIt = ({ context }: NotebookPanel): boolean =>
      PathExt.basename(contents.localPath(context.path)) === file;
    const current = this.notebooks?.currentWidget;
    return current && isIt(current) ? current : this.notebooks?.find(isIt);
  }
}
