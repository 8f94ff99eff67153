/** The fields of the start form; their names are those of a site's profile. */
import type { SiteChoice, Wishes } from '../cards';
import { h } from '../view/dom';
import { setText } from './grid';

interface Kind {
  name: string;
  label: string;
  /** What to write, shown where nothing is. */
  hint: string;
  title: string;
  /** Kept under “More”. */
  isRare?: boolean;
}

const HERE: Kind[] = [
  { name: 'ranks', label: 'Ranks', hint: 'one per GPU, or 2', title: 'how many ranks: empty for one per GPU, or 2 on a machine without' }
];

const JOB: Kind[] = [
  { name: 'nodes', label: 'Nodes', hint: '1', title: 'compute nodes' },
  { name: 'gpus_per_node', label: 'GPUs per node', hint: 'none', title: 'GPUs of each node; each gets a rank' },
  { name: 'time', label: 'Time', hint: '01:00:00', title: 'hours:minutes:seconds, or days-hours:minutes:seconds' },
  { name: 'account', label: 'Account', hint: 'yours', title: 'whose budget pays for the job' },
  { name: 'partition', label: 'Partition', hint: 'the site’s', title: 'partition, or queue' },
  { name: 'ranks_per_node', label: 'Ranks per node', hint: 'one per GPU, or 2', title: 'ranks on each node', isRare: true },
  { name: 'qos', label: 'QoS', hint: 'none', title: 'quality of service', isRare: true },
  { name: 'constraint', label: 'Constraint', hint: 'none', title: 'a feature that nodes must have', isRare: true },
  { name: 'reservation', label: 'Reservation', hint: 'none', title: 'nodes that were set aside', isRare: true },
  { name: 'cpus_per_task', label: 'CPUs per rank', hint: 'as the site decides', title: 'cores for each rank', isRare: true },
  { name: 'memory_per_node', label: 'Memory per node', hint: 'as the site decides', title: 'megabytes, or like 64G', isRare: true },
  { name: 'memory_per_cpu', label: 'Memory per CPU', hint: 'as the site decides', title: 'megabytes, or like 4G; instead of memory per node', isRare: true }
];

const NAME: Kind = { name: 'name', label: 'Name', hint: 'chosen for you', title: 'what the cluster is called', isRare: true };

let forms = 0;

/** One labelled field and what is wrong with it. */
class Field {
  readonly node: HTMLElement;
  readonly input: HTMLInputElement;
  private wrong: HTMLElement;

  constructor(
    readonly kind: Kind,
    site: SiteChoice,
    form: number,
    changed: () => void
  ) {
    const id = `rr-form-${form}-${kind.name}`;
    this.input = h('input', 'rr-input', {
      id, name: kind.name, type: 'text', title: kind.title, autocomplete: 'off', spellcheck: 'false',
      placeholder: site.wishes[kind.name] || kind.hint, 'aria-describedby': `${id}-wrong`, oninput: changed
    });
    this.wrong = h('div', 'rr-wrong', { id: `${id}-wrong`, role: 'alert', hidden: true });
    this.node = h('div', 'rr-field', {}, h('label', '', { for: id }, kind.label), this.input, this.wrong);
  }

  complain(text: string): void {
    setText(this.wrong, text);
    this.wrong.hidden = text === '';
    this.input.setAttribute('aria-invalid', String(text !== ''));
  }
}

export class Fields {
  readonly node: HTMLElement;
  private fields: Field[];
  private rest: HTMLDetailsElement;
  private back = h('input', '', { type: 'checkbox' });

  constructor(site: SiteChoice, changed: () => void) {
    const form = ++forms;
    this.fields = [...(site.scheduler === 'none' ? HERE : JOB), NAME].map(kind => new Field(kind, site, form, changed));
    const nodes = (isRare: boolean): HTMLElement[] =>
      this.fields.filter(field => Boolean(field.kind.isRare) === isRare).map(field => field.node);
    const back = h('label', 'rr-check', { title: 'a rank that dies is restarted, without its variables' }, this.back, 'bring back ranks that die');
    this.rest = h('details', 'rr-more-fields', {}, h('summary', '', {}, 'More'), ...nodes(true), back);
    this.node = h('div', 'rr-fields', {}, ...nodes(false), this.rest);
  }

  /** What was typed. */
  get wishes(): Wishes {
    const typed = this.fields.map(({ input }) => [input.name, input.value.trim()]);
    return Object.fromEntries([...typed.filter(([, value]) => value), ...(this.back.checked ? [['auto_restart', 'true']] : [])]) as Wishes;
  }

  /** Say at each field what is wrong with it; false if an error belongs to none of them. */
  complain(errors: { [field: string]: string }): boolean {
    for (const field of this.fields) {
      const text = errors[field.kind.name] ?? '';
      field.complain(text);
      if (text && field.kind.isRare) {
        this.rest.open = true;
      }
    }
    return Object.keys(errors).every(name => this.fields.some(field => field.kind.name === name));
  }

  focusWrong(): void {
    this.fields.find(({ input }) => input.getAttribute('aria-invalid') === 'true')?.input.focus();
  }
}
