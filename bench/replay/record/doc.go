// Package record keeps what a replay measured: an Outcome for each request, HDR
// histograms over all of them, and the sums that a report shows.
//
// Times to first token and latencies count from when a request was due, not from
// when it could be sent: a client that falls behind must not hide how long its
// users would have waited. How far behind it was is a histogram of its own.
package record
