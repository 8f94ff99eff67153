/**
 * Stand-ins for what the view uses of JupyterLab's packages, for the standalone page: scripts/page.mjs substitutes this
 * module for the packages, which would add two MB.
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

/** A run that has ended has no actions to confirm. */
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
