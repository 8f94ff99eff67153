/** Texts for users, translated if JupyterLab has a language pack that includes Rankroom. */
import type { ITranslator } from '@jupyterlab/translation';

/** The part of JupyterLab's bundles that is used here; `%1`, `%2`… stand for the arguments, `%%` for `%`. */
export interface Translation {
  __(text: string, ...args: unknown[]): string;
  /** `%1` is `n`; further arguments follow. */
  _n(one: string, many: string, n: number, ...args: unknown[]): string;
}

/** The English of the code itself; JupyterLab's own null translator cannot be loaded outside a browser. */
const ENGLISH: Translation = {
  __: (text, ...args) => filled(text, args),
  _n: (one, many, n, ...args) => filled(n === 1 ? one : many, [n, ...args])
};

/** Call it when a text is shown, not when a module is loaded, which is before `translateBy`. */
export let trans: Translation = ENGLISH;

/** Translate with this translator from now on; English without one. */
export function translateBy(translator: ITranslator | null): void {
  trans = translator?.load('rankroom') ?? ENGLISH;
}

function filled(text: string, args: readonly unknown[]): string {
  return text.replace(/%(%|\d+)/g, (_, what: string) => (what === '%' ? what : String(args[Number(what) - 1])));
}
