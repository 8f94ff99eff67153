/** What a learner does with what the teacher offers; nothing of it happens without a click. */
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

/** The cluster that all lessons share, as notebook/course_ranks.py has it. */
const COURSE = 'course';
/** HTTP's number for a cluster that there is not. */
const GONE = 410;

export class Offers {
  constructor(
    private app: JupyterFrontEnd,
    private notebooks: INotebookTracker | null,
    private seat: Seat,
    private clusters: ClustersApi
  ) {}

  /** Below the active cell; it is not run. */
  async insert({ source = '' }: Message): Promise<void> {
    await insertCell(this.notebooks, codeCell(source), source);
  }

  /** Do what is offered, and put the offer away if that could be done. Throws what is wrong. */
  async take(offer: Offer): Promise<void> {
    const { lesson } = offer;
    if (!lesson) {
      throw new Error(trans.__('Begin a lesson first: its first cell says %1, with its number.', '%course'));
    }
    const isDone = offer.what === 'catch up' ? await this.catchUp(offer) : await this.reset(lesson);
    if (isDone) {
      await this.seat.close(offer, true);
    }
  }

  /** By a cell in the learner's notebook, which says what it does. */
  private async catchUp(offer: Offer): Promise<boolean> {
    const source = catchUpSource(offer);
    const panel = await insertCell(this.notebooks, codeCell(source), source);
    if (!panel) {
      return false;
    }
    await panel.sessionContext.ready;
    // Not awaited: what comes of it is under the cell.
    void NotebookActions.run(panel.content, panel.sessionContext);
    return true;
  }

  /** The notebook that there is gets another name, and a fresh one its own; the course's ranks restart. */
  private async reset(lesson: Lesson): Promise<boolean> {
    const panel = this.notebookOf(lesson);
    if (!panel) {
      throw new Error(trans.__('Open your notebook %1 first: it is kept under another name.', lesson.file));
    }
    const { path } = panel.context;
    await panel.context.save();
    await panel.sessionContext.shutdown();
    panel.close();
    try {
      Notification.info(await this.seat.api.reset(path), { autoClose: 10_000 });
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
      // Without ranks there are none to restart: the lesson's first cell starts some.
      if (!(error instanceof ApiError && error.status === GONE)) {
        throw error;
      }
    }
  }

  private notebookOf({ file }: Lesson): NotebookPanel | undefined {
    const isIt = (panel: NotebookPanel): boolean => PathExt.basename(panel.context.path) === file;
    const current = this.notebooks?.currentWidget;
    return current && isIt(current) ? current : this.notebooks?.find(isIt);
  }
}
