package policy

import "strings"

// The actions of S3 on objects, and those on buckets. What the store does not do is among them, so that a policy that was
// written for AWS is taken.
var (
	objectActions = []string{
		"AbortMultipartUpload", "BypassGovernanceRetention", "DeleteObject", "DeleteObjectTagging", "DeleteObjectVersion",
		"DeleteObjectVersionTagging", "GetObject", "GetObjectAcl", "GetObjectAttributes", "GetObjectLegalHold", "GetObjectRetention",
		"GetObjectTagging", "GetObjectTorrent", "GetObjectVersion", "GetObjectVersionAcl", "GetObjectVersionAttributes",
		"GetObjectVersionForReplication", "GetObjectVersionTagging", "GetObjectVersionTorrent", "InitiateReplication",
		"ListMultipartUploadParts", "PutObject", "PutObjectAcl", "PutObjectLegalHold",
		"PutObjectRetention", "PutObjectTagging", "PutObjectVersionAcl", "PutObjectVersionTagging", "ReplicateDelete", "ReplicateObject",
		"ReplicateTags", "RestoreObject", "UpdateObjectEncryption",
	}
	bucketActions = []string{
		"CreateBucket", "CreateBucketMetadataTableConfiguration", "DeleteBucket", "DeleteBucketMetadataTableConfiguration",
		"DeleteBucketPolicy", "DeleteBucketWebsite", "GetAccelerateConfiguration", "GetAnalyticsConfiguration", "GetBucketAbac",
		"GetBucketAcl", "GetBucketCORS", "GetBucketLocation", "GetBucketLogging", "GetBucketMetadataTableConfiguration",
		"GetBucketNotification", "GetBucketObjectLockConfiguration", "GetBucketOwnershipControls", "GetBucketPolicy",
		"GetBucketPolicyStatus", "GetBucketPublicAccessBlock", "GetBucketRequestPayment", "GetBucketTagging", "GetBucketVersioning",
		"GetBucketWebsite", "GetEncryptionConfiguration", "GetIntelligentTieringConfiguration", "GetInventoryConfiguration",
		"GetLifecycleConfiguration", "GetMetricsConfiguration", "GetReplicationConfiguration", "ListBucket",
		"ListBucketMultipartUploads", "ListBucketVersions", "ListTagsForResource", "PutAccelerateConfiguration",
		"PutAnalyticsConfiguration", "PutBucketAbac", "PutBucketAcl", "PutBucketCORS", "PutBucketLogging", "PutBucketNotification",
		"PutBucketObjectLockConfiguration", "PutBucketOwnershipControls", "PutBucketPolicy", "PutBucketPublicAccessBlock",
		"PutBucketRequestPayment", "PutBucketTagging", "PutBucketVersioning", "PutBucketWebsite", "PutEncryptionConfiguration",
		"PutIntelligentTieringConfiguration", "PutInventoryConfiguration", "PutLifecycleConfiguration", "PutMetricsConfiguration",
		"PutReplicationConfiguration", "TagResource", "UntagResource",
	}
)

// matching gives the actions that a pattern names, with their s3: in front.
func matching(pattern string, actions []string) (names []string) {
	low := strings.ToLower(pattern)
	for _, a := range actions {
		if name := "s3:" + a; Like(low, strings.ToLower(name)) {
			names = append(names, name)
		}
	}
	return names
}

// isEveryAction reports whether a pattern stands for all that S3 can do.
func isEveryAction(pattern string) bool { return pattern == "*" || strings.EqualFold(pattern, "s3:*") }
