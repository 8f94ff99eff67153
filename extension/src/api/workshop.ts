/** The requests of a teacher's console and of a learner's panel to the server. */
import { type Api, parsed } from '../api';
import type { Offer, OfferKind, Overview, Own } from '../workshop_answers';

type Body = { [name: string]: string };

export class WorkshopApi {
  constructor(private api: Api) {}

  /** Return the workshop as its teacher sees it, with the results of one exercise; if '', the server chooses one. */
  async overview(folder: string, exercise: string): Promise<Overview> {
    const query = { ...(folder ? { folder } : {}), ...(exercise ? { exercise } : {}) };
    return (await parsed(await this.api.ask('GET', ['workshop'], query))) as Overview;
  }

  /** Return the workshop in which this server is a seat; role '' if there is none. */
  async own(): Promise<Own> {
    return (await parsed(await this.api.ask('GET', ['workshop', 'own'], {}))) as Own;
  }

  /** Send the teacher's message to all learners; return who will see it, in a sentence. */
  say(folder: string, text: string): Promise<string> {
    return this.post('say', { folder, text });
  }

  offerCell(folder: string, source: string, title: string): Promise<string> {
    return this.post('cell', { folder, source, title });
  }

  /** Start a timer; with '' for `minutes`, remove it. */
  timer(folder: string, minutes: string, title: string): Promise<string> {
    return this.post('timer', { folder, minutes, title });
  }

  /** Show a run to all learners; with '', show none. */
  showRun(folder: string, run: string): Promise<string> {
    return this.post('show', { folder, run });
  }

  /** Offer one learner a catch-up as far as an exercise, or a reset. */
  offer(folder: string, user: string, what: OfferKind, exercise: string): Promise<string> {
    return this.post('offer', { folder, user, what, exercise });
  }

  /** Raise or lower the learner's hand. */
  hand(isUp: boolean): Promise<string> {
    return this.post('hand', { is_up: isUp ? 'yes' : 'no' });
  }

  share(isOn: boolean): Promise<string> {
    return this.post('share', { is_on: isOn ? 'yes' : 'no' });
  }

  /** Accept or decline an offer; either closes it. */
  answer(offer: Offer, isTaken: boolean): Promise<string> {
    return this.post('answer', { offer: offer.id, is_taken: isTaken ? 'yes' : 'no' });
  }

  /** Replace a notebook by a fresh copy of its lesson; return the name under which it is kept, in a sentence. */
  reset(notebook: string): Promise<string> {
    return this.post('reset', { notebook });
  }

  private async post(what: string, body: Body): Promise<string> {
    const answer = await this.api.ask('POST', ['workshop', what], {}, undefined, body);
    return String(((await parsed(answer)) as { message: unknown }).message);
  }
}
