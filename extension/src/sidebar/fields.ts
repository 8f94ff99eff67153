/** The fields of the start form; their names are those of a site's profile. */
import type { SiteChoice, StartRequest } from '../cluster_status';
import { trans } from '../translation';
import { h, setText } from '../view/dom';

interface Kind {
  name: string;
  label: string;
  /** The placeholder of an empty field. */
  hint: string;
  title: string;
  /** Whether the field is under “More”. */
  isRare?: boolean;
}

function hereKinds(): Kind[] {
  const title = trans.__('number of ranks; if left empty, one per GPU, or 2 on a machine without GPUs');
  return [{ name: 'ranks', label: trans.__('Ranks'), hint: trans.__('one per GPU, or 2'), title }];
}

function jobKinds(): Kind[] {
  const none = trans.__('none');
  const decided = trans.__('the site’s default');
  return [
    { name: 'nodes', label: trans.__('Nodes'), hint: '1', title: trans.__('compute nodes') },
    { name: 'gpus_per_node', label: trans.__('GPUs per node'), hint: none, title: trans.__('GPUs of each node; each gets a rank') },
    { name: 'time', label: trans.__('Time'), hint: '01:00:00', title: trans.__('hours:minutes:seconds, or days-hours:minutes:seconds') },
    { name: 'account', label: trans.__('Account'), hint: trans.__('yours'), title: trans.__('whose budget pays for the job') },
    { name: 'partition', label: trans.__('Partition'), hint: trans.__('the site’s'), title: trans.__('partition, or queue') },
    {
      name: 'ranks_per_node', label: trans.__('Ranks per node'), hint: trans.__('one per GPU, or 2'), title: trans.__('ranks on each node'),
      isRare: true
    },
    { name: 'qos', label: trans.__('QoS'), hint: none, title: trans.__('quality of service'), isRare: true },
    { name: 'constraint', label: trans.__('Constraint'), hint: none, title: trans.__('a feature that nodes must have'), isRare: true },
    { name: 'reservation', label: trans.__('Reservation'), hint: none, title: trans.__('the name of a reservation of nodes'), isRare: true },
    { name: 'cpus_per_task', label: trans.__('CPUs per rank'), hint: decided, title: trans.__('cores for each rank'), isRare: true },
    { name: 'memory_per_node', label: trans.__('Memory per node'), hint: decided, title: trans.__('megabytes, or like 64G'), isRare: true },
    {
      name: 'memory_per_cpu', label: trans.__('Memory per CPU'), hint: decided, title: trans.__('megabytes, or like 4G; instead of memory per node'),
      isRare: true
    }
  ];
}

function nameKind(): Kind {
  return { name: 'name', label: trans.__('Name'), hint: trans.__('chosen for you'), title: trans.__('what the cluster is called'), isRare: true };
}

let forms = 0;

/** One labeled field and its error. */
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
      placeholder: site.defaults[kind.name] || kind.hint, 'aria-describedby': `${id}-wrong`, oninput: changed
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
    const kinds = [...(site.scheduler === 'none' ? hereKinds() : jobKinds()), nameKind()];
    this.fields = kinds.map(kind => new Field(kind, site, form, changed));
    const nodes = (isRare: boolean): HTMLElement[] =>
      this.fields.filter(field => Boolean(field.kind.isRare) === isRare).map(field => field.node);
    const back = h(
      'label', 'rr-check', { title: trans.__('restart a rank whose process dies; its variables are lost') },
      this.back, trans.__('restart ranks that die')
    );
    this.rest = h('details', 'rr-more-fields', {}, h('summary', '', {}, trans.__('More')), ...nodes(true), back);
    this.node = h('div', 'rr-fields', {}, ...nodes(false), this.rest);
  }

  /** What was typed. */
  get request(): StartRequest {
    const typed = this.fields.map(({ input }) => [input.name, input.value.trim()]);
    return Object.fromEntries([...typed.filter(([, value]) => value), ...(this.back.checked ? [['auto_restart', 'true']] : [])]) as StartRequest;
  }

  /** Restore what was typed into earlier fields. */
  fill(request: StartRequest): void {
    for (const { input } of this.fields) {
      input.value = request[input.name] ?? '';
    }
    this.back.checked = request.auto_restart === 'true';
  }

  /** Show each error at its field; return false if an error belongs to no field. */
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
