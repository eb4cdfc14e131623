// Package erasure makes the files in which bodies are kept with redundancy: copies, and the shards
// of a systematic Reed-Solomon code (rs-v1). It is pure: it writes to and reads from what it is given,
// and the same body gives the same bytes.
//
// Reed-Solomon computes what is missing, and cannot see what is wrong. So every block of 64 KiB has
// a checksum, which is compared before a byte is used; every file names the generation that it is of
// and the digests of all its shards; and all of them have the hash of the whole body.
package erasure
