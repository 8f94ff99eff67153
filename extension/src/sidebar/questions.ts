/** Questions of ssh, as a dialog in every window until one of them answers. */
import { Dialog } from '@jupyterlab/apputils';
import { Widget } from '@lumino/widgets';

import type { Question } from '../cluster_status';
import { trans } from '../translation';
import { h } from '../view/dom';
import type { Clusters } from './clusters';

/** How ssh asks whether a host's key is to be trusted. */
const YES_OR_NO = /\(yes\/no/;

class Body extends Widget implements Dialog.IBodyWidget<string> {
  private input: HTMLInputElement | null = null;

  constructor(question: Question) {
    super();
    this.addClass('rr-question');
    this.node.append(h('div', 'rr-question-text', {}, question.text.trim()));
    if (!YES_OR_NO.test(question.text)) {
      this.input = h('input', '', {
        type: question.secret ? 'password' : 'text', autocomplete: 'off', spellcheck: 'false', 'aria-label': question.text.trim()
      });
      this.node.append(this.input, h('div', 'rr-hint', {}, trans.__('Your answer goes to ssh and is not stored.')));
    }
  }

  getValue(): string {
    return this.input?.value ?? '';
  }
}

export class Questions {
  private open: { id: string; dialog: Dialog<string> } | null = null;
  /** Ids of questions answered here, which the server may still report for a moment. */
  private done = new Set<string>();

  constructor(private clusters: Clusters) {
    clusters.changed.connect(this.refresh, this);
  }

  private refresh(): void {
    const { questions } = this.clusters;
    const { open } = this;
    if (open && !questions.some(question => question.id === open.id)) {
      // Another window has answered, or ssh has given up.
      this.open = null;
      open.dialog.reject();
    }
    const next = questions.find(question => !this.done.has(question.id));
    if (!this.open && next) {
      void this.ask(next);
    }
  }

  private async ask(question: Question): Promise<void> {
    const isTrust = YES_OR_NO.test(question.text);
    const buttons = isTrust
      ? [Dialog.cancelButton({ label: trans.__('No') }), Dialog.warnButton({ label: trans.__('Yes, trust it') })]
      : [Dialog.cancelButton(), Dialog.okButton({ label: trans.__('Answer') })];
    const dialog = new Dialog<string>({
      title: isTrust ? trans.__('Do you trust %1?', question.host) : trans.__('ssh asks while connecting to %1', question.host),
      body: new Body(question),
      buttons,
      hasClose: false,
      focusNodeSelector: 'input',
      // Pressing Enter once too often must not trust a host.
      defaultButton: isTrust ? 0 : 1
    });
    this.open = { id: question.id, dialog };
    const { button, value } = await dialog.launch();
    if (this.open?.id === question.id) {
      this.open = null;
      this.done.add(question.id);
      const said = isTrust ? 'yes' : (value ?? '');
      if (!(await this.clusters.answer(question, button.accept ? said : null))) {
        this.done.delete(question.id); // it is asked again
      }
    }
  }
}
