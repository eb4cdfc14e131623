// Package ledger keeps what is known of the files of large bodies: which file of which policy is where, and how far it
// is. Beside the rows it has the queue of bodies that need work, and those that were tried too often.
//
// A row changes only by an event on the version it was decided on (compare and swap), so two workers on one body, a
// message that is delivered twice, and a worker that comes back after it was given up cannot undo each other's steps.
//
// The ledger is a cache. The log says which bodies there are, the places say which files, and each file says what it
// is; a ledger that is lost, or older than the files, is brought up to date by listings (package redundancy).
// Nothing may be removed because the ledger says that something else is there: the places are asked first.
package ledger
