/** A table that can be sorted by each column; of many rows, only the first are shown until all are requested. */
import { Clipboard } from '@jupyterlab/apputils';

import { asCsv, asText, sorted, type Column, type Table } from '../timeline/tables';
import { trans } from '../translation';
import { h } from './dom';

/** Maximum number of rows that are shown by default. */
const ROWS = 16;

/** Adds to a cell's look. */
export type Dress<Row> = (cell: HTMLElement, column: Column<Row>, row: Row) => void;

export interface SortTableOptions<Row> {
  title: string;
  /** The label of the button that shows all rows. */
  all(rows: number): string;
  /** The message that so many rows were copied. */
  copied(rows: number): string;
  dress?: Dress<Row>;
  /** Creates a row's picture, in a column at the end that cannot be sorted by. */
  picture?: (row: Row) => HTMLElement;
  /** What the pictures show, for screen readers. */
  pictures?: string;
}

export class SortTable<Row> {
  readonly node: HTMLElement;
  private table: Table<Row> | null = null;
  private key = '';
  private isDescending = false;
  private isWhole = false;
  private headed = '';

  private head = h('tr', '');
  private body = h('tbody', '');
  private more = h('button', 'rr-button rr-more', { hidden: true, onclick: () => this.toggle() });
  private said = h('span', 'rr-copied', { role: 'status' });

  constructor(private options: SortTableOptions<Row>) {
    this.node = h(
      'section',
      'rr-tabular',
      { 'aria-label': options.title },
      h(
        'div',
        'rr-tabular-title',
        {},
        h('h4', '', {}, options.title),
        this.said,
        this.copyButton(trans.__('Copy text'), trans.__('copy all rows as aligned text'), asText),
        this.copyButton(
          trans.__('Copy CSV'),
          trans.__('copy all rows as comma-separated values, for a spreadsheet: times in microseconds'),
          asCsv
        )
      ),
      h('div', 'rr-tabular-scroll', {}, h('table', `rr-table ${options.picture ? 'rr-pictured' : ''}`, {}, h('thead', '', {}, this.head), this.body)),
      this.more
    );
  }

  /** Show this table; nothing is touched if it looks the same. */
  show(table: Table<Row>): void {
    this.table = table;
    this.node.hidden = table.rows.length === 0;
    this.refresh();
  }

  private refresh(): void {
    const { table } = this;
    if (!table) {
      return;
    }
    this.refreshHead(table.columns);
    const rows = this.ordered(table);
    const seen = this.isWhole ? rows : rows.slice(0, ROWS);
    // Compare nodes, as equal rows may look different: shares are of a total that is not part of them.
    const body = h('tbody', '', {}, ...seen.map(row => this.row(row, table.columns)));
    if (!body.isEqualNode(this.body)) {
      this.body.replaceChildren(...body.children);
    }
    this.more.hidden = rows.length <= ROWS;
    this.more.textContent = this.isWhole ? trans.__('show only %1', ROWS) : this.options.all(rows.length);
    this.more.setAttribute('aria-expanded', String(this.isWhole));
  }

  /** Keep the nodes of the headings, as one of them may have the focus. */
  private refreshHead(columns: ReadonlyArray<Column<Row>>): void {
    const headed = columns.map(({ key }) => key).join();
    if (headed !== this.headed) {
      this.headed = headed;
      const { picture, pictures = '' } = this.options;
      this.head.replaceChildren(
        ...columns.map(column => this.heading(column)),
        ...(picture ? [h('th', 'rr-pictures', { scope: 'col' }, h('span', 'rr-hidden', {}, pictures))] : [])
      );
    }
    columns.forEach(({ key }, i) => {
      const is = key === this.key;
      this.head.children[i].setAttribute('aria-sort', !is ? 'none' : this.isDescending ? 'descending' : 'ascending');
    });
  }

  private heading(column: Column<Row>): HTMLElement {
    return h(
      'th',
      `rr-col-${column.key}`,
      { scope: 'col' },
      h('button', 'rr-sort', { title: trans.__('%1. Click to sort', column.title), onclick: () => this.sortBy(column) }, column.head)
    );
  }

  private row(row: Row, columns: ReadonlyArray<Column<Row>>): HTMLElement {
    const { dress, picture } = this.options;
    const cells = columns.map((column, i) => {
      const text = h('span', 'rr-amount', {}, column.cell(row));
      const share = column.share ? h('span', 'rr-share', {}, column.share(row)) : null;
      const cell = h(i ? 'td' : 'th', `rr-col-${column.key}`, i ? {} : { scope: 'row' }, text, share);
      cell.classList.toggle('rr-nothing', share !== null && column.value(row) === 0);
      dress?.(cell, column, row);
      return cell;
    });
    return h('tr', '', {}, ...cells, picture ? h('td', 'rr-pictures', {}, picture(row)) : null);
  }

  /** Sort by a column: initially descending, but names and ranks ascending; reverse the order if called again. */
  private sortBy(column: Column<Row>): void {
    if (column.key === this.key) {
      this.isDescending = !this.isDescending;
    } else {
      this.key = column.key;
      const [row] = this.table?.rows ?? [];
      this.isDescending = column.key !== 'rank' && row !== undefined && typeof column.value(row) !== 'string';
    }
    this.refresh();
  }

  private toggle(): void {
    this.isWhole = !this.isWhole;
    this.refresh();
  }

  private ordered(table: Table<Row>): readonly Row[] {
    const column = table.columns.find(({ key }) => key === this.key);
    return column ? sorted(table.rows, column, this.isDescending) : table.rows;
  }

  private copyButton(label: string, title: string, write: (table: Table<Row>) => string): HTMLElement {
    const copy = (): void => {
      if (this.table) {
        Clipboard.copyToSystem(write({ ...this.table, rows: this.ordered(this.table) }));
        this.said.textContent = this.options.copied(this.table.rows.length);
      }
    };
    return h('button', 'rr-button rr-copy', { title, onclick: copy }, label);
  }
}
