/** How soon the timeline of a run is painted. */
import type { Page } from '../../tests/ui/rankroom';
import { ASKED } from './page';

interface Lab {
  jupyterapp: { commands: { execute(id: string, args: object): Promise<unknown> } };
}

export interface Opened {
  /** When the whole run is shown at overview resolution, with its waits and transfers. */
  first: number;
  /** When each span is shown exactly. */
  exact: number;
}

/** Return the seconds from the command that opens the run until frames show it. */
export async function openTimeline(page: Page, run: string): Promise<Opened> {
  return page.evaluate(async ({ run, ranks, spans }) => {
    const { commands } = (window as unknown as Lab).jupyterapp;
    const begun = performance.now();
    void commands.execute('rankroom:open-run', { id: run, tab: 'timeline' });
    /** Return when the first frame was painted for which `holds` is true. */
    const painted = (holds: (data: DOMStringMap) => boolean): Promise<number> =>
      new Promise((done, fail) => {
        const look = (): void => {
          const body = document.querySelector<HTMLElement>('.rr-tl-body');
          if (body && holds(body.dataset)) {
            // A message posted in a frame arrives after that frame has been painted.
            const channel = new MessageChannel();
            channel.port1.onmessage = () => done((performance.now() - begun) / 1000);
            channel.port2.postMessage(null);
          } else if (performance.now() - begun > 60_000) {
            fail(new Error(`not painted: ${JSON.stringify(body?.dataset)}`));
          } else {
            requestAnimationFrame(look);
          }
        };
        requestAnimationFrame(look);
      });
    const all = (data: DOMStringMap): boolean =>
      Number(data.spans) === spans && Number(data.ranks) === ranks && data.matched === 'true';
    const [first, exact] = await Promise.all([painted(all), painted(data => all(data) && data.exact === 'true')]);
    return { first, exact };
  }, { ...ASKED, run });
}
