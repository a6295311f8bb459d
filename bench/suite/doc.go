// Package suite runs the project's benchmarks one after the other and puts what they
// found on one page.
//
// A benchmark is a Part: a command for each budget, how long it may take, what it
// needs, and how its output is read. Each has a file of its own; All lists them, and
// adding one is an entry there. A part that fails, is not possible here or takes too
// long is told so on the page, and the rest goes on.
//
// The suite is a subreaper: what a part leaves behind (engines of a script that was
// killed, daemons that linger) becomes its child and ends before the next part
// begins. So its parts' processor time can be told from that of other work on the
// machine, which the page shows beside every part.
package suite
