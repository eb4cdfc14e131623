// Package badinput sends a checked-in corpus of bad inputs to every face of the system,
// over real connections, and wants for each the typed answer that stands beside it: no
// panic, bounded memory, a service that works afterwards, and nothing written.
// docs/protocol/bad-input.md lists the classes.
package badinput
