/** What a teacher's console and a learner's panel ask the server. */
import { type Api, parsed } from '../api';
import type { Offer, OfferKind, Overview, Own } from '../workshop_answers';

type Body = { [name: string]: string };

export class WorkshopApi {
  constructor(private api: Api) {}

  /** The workshop as its teacher sees it, with how one exercise went; without a name the server chooses one. */
  async overview(folder: string, exercise: string): Promise<Overview> {
    const query = { ...(folder ? { folder } : {}), ...(exercise ? { exercise } : {}) };
    return (await parsed(await this.api.ask('GET', ['workshop'], query))) as Overview;
  }

  /** The workshop that this server is a seat of; role '' without one. */
  async own(): Promise<Own> {
    return (await parsed(await this.api.ask('GET', ['workshop', 'own'], {}))) as Own;
  }

  /** The teacher says something to all, and is told who will see it, in a sentence. */
  say(folder: string, text: string): Promise<string> {
    return this.post('say', { folder, text });
  }

  offerCell(folder: string, source: string, title: string): Promise<string> {
    return this.post('cell', { folder, source, title });
  }

  /** No minutes: no timer any more. */
  timer(folder: string, minutes: string, title: string): Promise<string> {
    return this.post('timer', { folder, minutes, title });
  }

  /** No run: none is shown any more. */
  showRun(folder: string, run: string): Promise<string> {
    return this.post('show', { folder, run });
  }

  /** Offer one learner to catch up as far as an exercise, or a reset. */
  offer(folder: string, user: string, what: OfferKind, exercise: string): Promise<string> {
    return this.post('offer', { folder, user, what, exercise });
  }

  /** The learner's hand. */
  hand(isUp: boolean): Promise<string> {
    return this.post('hand', { is_up: isUp ? 'yes' : 'no' });
  }

  share(isOn: boolean): Promise<string> {
    return this.post('share', { is_on: isOn ? 'yes' : 'no' });
  }

  /** What became of an offer: it is not made again. */
  answer(offer: Offer, isTaken: boolean): Promise<string> {
    return this.post('answer', { offer: offer.id, is_taken: isTaken ? 'yes' : 'no' });
  }

  /** A fresh copy of a lesson takes the place of a notebook, which is kept under another name: which, in a sentence. */
  reset(notebook: string): Promise<string> {
    return this.post('reset', { notebook });
  }

  private async post(what: string, body: Body): Promise<string> {
    const answer = await this.api.ask('POST', ['workshop', what], {}, undefined, body);
    return String(((await parsed(answer)) as { message: unknown }).message);
  }
}
