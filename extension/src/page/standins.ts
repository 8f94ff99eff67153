/**
 * What the view takes of JupyterLab's packages, for a page that has none of them: scripts/page.mjs puts this in their
 * place, as the packages themselves would be two MB.
 */

export const ServerConnection = {
  makeRequest: (
    url: string,
    init: RequestInit,
    settings: { fetch: (url: string, init: RequestInit) => Promise<Response> }
  ): Promise<Response> => settings.fetch(url, init)
};

export const Clipboard = {
  copyToSystem: (text: string): void => void navigator.clipboard?.writeText(text)
};

/** Nothing of a run that is over is asked about. */
export const Dialog = { cancelButton: (): null => null, warnButton: (): null => null };

export async function showDialog(): Promise<{ button: { accept: boolean } }> {
  return { button: { accept: false } };
}

export class MimeModel {
  readonly data: { [type: string]: unknown };

  constructor(options: { data?: { [type: string]: unknown } }) {
    this.data = options.data ?? {};
  }
}
