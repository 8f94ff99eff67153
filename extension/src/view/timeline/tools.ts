/** The controls above the timeline: zoom, search, what is shown, and a legend of the colors. */
import { css, nameColour, type Palette } from '../../timeline/colours';
import { nameOf } from '../../timeline/lanes';
import { trans } from '../../translation';
import { grouped } from '../../words';
import { h, setText } from '../dom';

export interface ToolActions {
  zoom(factor: number): void;
  fit(): void;
  search(text: string): void;
  next(step: 1 | -1): void;
  openAll(): void;
  meters(isShown: boolean): void;
  leave(): void;
  /** Where the timeline can be downloaded from. */
  traceUrl: string;
}

export class Tools {
  private find = h('input', 'rr-find', {
    type: 'search',
    placeholder: trans.__('find spans'),
    'aria-label': trans.__('find spans by name or tensor'),
    title: trans.__('find spans by name or tensor; Enter: next, Shift-Enter: previous'),
    oninput: () => this.actions.search(this.find.value),
    onkeydown: (event: KeyboardEvent) => this.onKey(event)
  });
  private found = h('span', 'rr-tl-found', { role: 'status' });
  private back = this.button('‹', trans.__('previous match'), () => this.actions.next(-1));
  private on = this.button('›', trans.__('next match'), () => this.actions.next(1));
  private open = this.button(trans.__('open all'), trans.__('open or close all ranks'), () => this.actions.openAll());
  private meters = h('input', '', { type: 'checkbox', onchange: () => this.actions.meters(this.meters.checked) });
  private metersLabel = h(
    'label', 'rr-same', { title: trans.__('show how busy each rank was: CPU, GPU and memory') }, this.meters, trans.__('utilisation')
  );
  private legend = h('span', 'rr-tl-legend', { 'aria-label': trans.__('colours') });
  private legendKey = '';
  readonly node: HTMLElement;

  constructor(private actions: ToolActions) {
    this.node = h(
      'div', 'rr-tools rr-tl-tools', {},
      h('span', 'rr-chips', { role: 'group', 'aria-label': trans.__('zoom') },
        this.button('−', trans.__('zoom out (S, or Ctrl and the wheel)'), () => actions.zoom(1.6)),
        this.button('+', trans.__('zoom in (W, or Ctrl and the wheel)'), () => actions.zoom(1 / 1.6)),
        this.button(trans.__('fit'), trans.__('show what is selected, or all (F)'), () => actions.fit())),
      h('span', 'rr-chips', { role: 'search' }, this.find, this.back, this.on, this.found),
      this.open, this.metersLabel, this.save(actions.traceUrl), this.legend
    );
    this.say(null);
  }

  /** Show how many spans match; null if there is no search. */
  say(matches: number | null): void {
    this.back.hidden = this.on.hidden = matches === null;
    this.back.disabled = this.on.disabled = !matches;
    const text = matches === null ? '' : matches ? trans._n('%2 match', '%2 matches', matches, grouped(matches)) : trans.__('no match');
    setText(this.found, text);
  }

  refresh(cats: readonly string[], palette: Palette, hasMeters: boolean, isAllOpen: boolean, key: string): void {
    this.metersLabel.hidden = !hasMeters;
    this.open.textContent = isAllOpen ? trans.__('close all') : trans.__('open all');
    const all = `${key} ${cats.join()}`;
    if (all === this.legendKey) {
      return;
    }
    this.legendKey = all;
    const entries = cats.flatMap((cat): Array<[string, string, number]> =>
      cat === 'collective'
        ? [[cat, trans.__('waiting for others'), palette.wait], [cat, trans.__('transfer'), palette.transfer]]
        : [[cat, nameOf(cat), palette.cats[cat] ?? nameColour(palette, cat)]]
    );
    this.legend.replaceChildren(
      ...entries.map(([cat, label, colour]) => {
        const swatch = h('span', 'rr-tl-swatch', { 'aria-hidden': 'true' });
        const isPlain = cat in palette.cats || colour === palette.wait || colour === palette.transfer || cat === 'wait';
        // Spans of the other categories are colored by name, so show several colors.
        swatch.style.background = isPlain
          ? css(colour)
          : `linear-gradient(90deg, ${palette.names.slice(0, 4).map((each, i) => `${css(each)} ${25 * i}% ${25 * (i + 1)}%`).join(', ')})`;
        return h('span', 'rr-tl-key', {}, swatch, label);
      })
    );
  }

  focusSearch(): void {
    this.find.focus();
    this.find.select();
  }

  setMeters(isShown: boolean): void {
    this.meters.checked = isShown;
  }

  setText(text: string): void {
    this.find.value = text;
  }

  private save(href: string): HTMLElement {
    const title = trans.__('download the timeline of all ranks as Chrome JSON, which Perfetto opens');
    return h('a', 'rr-button', { href, download: '', title, 'aria-label': title }, '⤓');
  }

  private button(label: string, title: string, act: () => void): HTMLButtonElement {
    return h('button', 'rr-button', { title, 'aria-label': title, onclick: act }, label);
  }

  private onKey(event: KeyboardEvent): void {
    if (event.key === 'Enter') {
      event.preventDefault();
      this.actions.next(event.shiftKey ? -1 : 1);
    } else if (event.key === 'Escape') {
      this.find.value = '';
      this.actions.search('');
      this.actions.leave();
    }
  }
}
