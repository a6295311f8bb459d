// Package page draws plots as SVG and puts them with text and tables on one page of
// HTML that asks nothing of the network: style and drawings are in it, there is no
// script. All that is given to it is escaped; the same page is the same bytes.
package page
