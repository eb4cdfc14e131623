// Package sigv4 verifies AWS Signature Version 4 of S3 requests: headers, presigned
// queries, and signed body chunks and trailers.
package sigv4
